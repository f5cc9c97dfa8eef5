"""Compares transformers' ``generate`` with specdec on the same questions: their speed, and whether texts are equal."""
