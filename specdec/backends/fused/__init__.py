"""A decoder layer in nine kernels whose rows are independent, for models on one GPU."""
