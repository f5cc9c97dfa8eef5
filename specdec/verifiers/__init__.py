"""Acceptance rules, which select the accepted path of a draft tree."""
