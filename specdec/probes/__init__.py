"""Tests of a model at load, bounded in time; their findings are cached."""
