"""Sampling: logits, processors and temperature, distributions, tokens."""
