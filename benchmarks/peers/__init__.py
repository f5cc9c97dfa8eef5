"""Contenders, each in a process of its own: a worker per library, and the process that drives them."""
