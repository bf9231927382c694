"""Keras models as graphs of canonical operators."""

from onernn.adapters.keras.lower.model import load_keras

__all__ = ["load_keras"]
