"""Pictures of decoding: the steps of a generation, the attention mask of one step, and two strategies side by side."""
