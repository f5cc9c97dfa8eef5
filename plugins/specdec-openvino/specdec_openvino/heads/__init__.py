"""Trained heads: their graphs, and their passes while drafting."""
