"""Decoding: the step, the requests that share it, and the results and figures that come of it."""
