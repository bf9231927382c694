"""Blocks of the manual that need keras: they run, and print what their page shows."""

import os

from support.framework_pages import checked_pages

os.environ.setdefault("KERAS_BACKEND", "jax")
TestPages = checked_pages("keras")
