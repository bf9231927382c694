"""Comparing a model with recorded outputs, and telling the result."""
