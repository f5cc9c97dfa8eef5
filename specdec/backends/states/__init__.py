"""Caches and costs of recurrent and hybrid models, whose layers keep a state besides keys and values."""
