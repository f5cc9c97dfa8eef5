"""Indexes of token ids: the file format, building one from documents, and looking up n-grams."""
