"""Pictures of decoding: traces of a generation, the attention mask of a step, and races of two strategies."""
