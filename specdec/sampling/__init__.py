"""Sampling: from logits, by processors and temperature, to distributions and tokens."""
