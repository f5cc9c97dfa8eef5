"""transformers' ``generate`` beside specdec on three questions: who writes what, how fast, and what made it so."""
