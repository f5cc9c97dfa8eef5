"""Facts about the machine, the user's cache folder, and timings that hold on a busy machine."""
