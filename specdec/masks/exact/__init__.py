"""Bit-exact attention: the mask compiler, the regions that each node's sum is divided into, and the kernel."""
