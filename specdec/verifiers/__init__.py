"""Stage 4: which path of a draft tree the model itself would have taken."""
