"""Measurements, and the separately written references they are held against."""
