"""Text from tokens while they come."""
