"""Pictures of decoding: traces, the attention mask of a step, races of two strategies, and a head's training."""
