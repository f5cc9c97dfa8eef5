"""Contenders, each a process of its own: a worker per library, and what starts and asks them."""
