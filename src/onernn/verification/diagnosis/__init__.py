"""Finds known faults that explain why outputs differ."""
