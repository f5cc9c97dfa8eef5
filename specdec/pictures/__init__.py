"""Pictures of decoding: traces of a generation, the attention mask of a step, races of two strategies, and a head's training."""
