"""Indexes of token ids: the file, how it is made of documents, and how runs of tokens are found in it."""
