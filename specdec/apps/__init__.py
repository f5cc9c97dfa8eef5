"""Applications built on specdec: none of its other packages imports them."""
