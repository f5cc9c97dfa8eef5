"""specdec inside transformers: its strategies in ``generate``, and drafts of either for the other."""
