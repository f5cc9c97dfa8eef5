"""Bit-exact attention on GPUs: each node reads its cache slots in the order of positions."""
