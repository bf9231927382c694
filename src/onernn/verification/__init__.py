"""Compares a model with recorded outputs and finds the cause of a difference."""
