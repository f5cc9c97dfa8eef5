"""Bit-exact attention: the mask compiler, the regions of each node's sum, and the kernel that reads them."""
