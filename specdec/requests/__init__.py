"""Requests: from a caller's prompts and settings to checked sequences."""
