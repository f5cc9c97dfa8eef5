"""A comparison's figures, drawn with matplotlib."""
