"""Drafts from a trained EAGLE-3 head."""
