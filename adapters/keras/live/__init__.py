"""Keras itself, where it is installed."""
