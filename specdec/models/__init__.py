"""Facts about a model: how it is loaded, what it computes now, and what its code allows."""
