"""Mask compilers and their attention kernels: which keys each node may see."""
