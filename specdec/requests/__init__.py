"""Requests: a caller's prompts and settings, translated and checked."""
