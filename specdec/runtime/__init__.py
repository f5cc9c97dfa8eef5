"""A generator's parts: its binding to a model, the strategies, and open batches."""
