"""Facts about the machine, the user's cache folder, and timings that are valid on a busy machine."""
