"""Weight matrices packed for products of a few rows; all other code sees ordinary layers."""
