"""Runs passes: graphs compiled for a device, the paged cache, and the sizes and inputs of passes."""
