"""Drafts from Medusa's trained heads."""
