"""Stage 2: which keys each node may see, in the form that one attention kernel understands."""
