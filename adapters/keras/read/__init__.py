"""The files of Keras models: what they say, before anything is made of it."""

from onernn.adapters.keras.read.configuration import Call, Layer, Network, Ref, inner_layer, network
from onernn.adapters.keras.read.files import Model, read_model
from onernn.adapters.keras.read.weights import Reader, Weights, group_names

__all__ = [
    "Call",
    "Layer",
    "Model",
    "Network",
    "Reader",
    "Ref",
    "Weights",
    "group_names",
    "inner_layer",
    "network",
    "read_model",
]
