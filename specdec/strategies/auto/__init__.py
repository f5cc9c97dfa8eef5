"""Several sources of draft tokens in one tree, of the size that pays."""
