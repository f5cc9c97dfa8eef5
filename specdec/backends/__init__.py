"""Stage 3: one forward pass over all nodes, and its cache of keys and values."""
