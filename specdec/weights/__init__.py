"""Matrices laid out in memory for products of a few rows, in layers that stay what they are to everybody else."""
