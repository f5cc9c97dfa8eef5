"""Stage 1: which tokens might come next."""
