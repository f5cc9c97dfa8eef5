"""Measurements, and the separately written references they are compared with."""
