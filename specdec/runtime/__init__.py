"""The parts of a generator: its binding to a model, the strategies, and open batches."""
