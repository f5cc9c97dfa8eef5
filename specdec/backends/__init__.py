"""Stage 3: one forward pass over all nodes, and the cache of keys and values behind it."""
