"""specdec inside transformers: ``custom_generate``, and candidate generators in both directions."""
