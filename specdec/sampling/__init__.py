"""Sampling: from logits through processors and temperature to a distribution, and from it to a token."""
