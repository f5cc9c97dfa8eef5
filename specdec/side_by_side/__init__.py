"""transformers' ``generate`` and specdec on the same questions: their speed, and whether their texts are the same."""
