"""Acceptance rules: the path of a draft tree that the model itself takes."""
