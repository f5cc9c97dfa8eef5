"""specdec inside transformers: its strategies behind ``generate``, and drafts of either for the other."""
