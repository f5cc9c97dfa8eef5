"""Passes of torch that are recorded once and run again without the model's Python code."""
