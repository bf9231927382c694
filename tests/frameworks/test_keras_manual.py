"""Blocks of the manual that need keras: they run, and print what their page shows."""

import os

from support.framework_pages import checked_pages

os.environ.setdefault("KERAS_BACKEND", "jax")  # as the other tests of Keras do: no TensorFlow

TestPages = checked_pages("keras")
