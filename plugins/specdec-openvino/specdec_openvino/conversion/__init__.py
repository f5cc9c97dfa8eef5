"""From a transformers model to a conversion: a graph with paged attention, its weights apart, and its cached file."""
