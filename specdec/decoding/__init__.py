"""Decoding: the step, the requests that share it, their results and statistics."""
