"""What decoding looks like: the steps of a generation, the attention mask of one, and two strategies side by side."""
