"""From a caller's prompts and settings to checked requests."""
