"""Training of draft heads on text that the target writes itself."""
