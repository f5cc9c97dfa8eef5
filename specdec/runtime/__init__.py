"""The parts of a generator, bound to a model in its present state."""
