"""Drafts from a smaller model, or from the target's own first layers."""
