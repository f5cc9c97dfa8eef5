"""The built documentation site."""
