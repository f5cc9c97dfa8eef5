"""Weight matrices packed for products of a few rows; their layers stay ordinary layers to all other code."""
