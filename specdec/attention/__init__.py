"""Attention functions of specdec's own, for where a model's own can't do what a layout asks, or not as fast."""
