"""Blocks of the manual that need torch, or keras on torch: they run, and print what is shown."""

import os

from support.framework_pages import checked_pages

os.environ.setdefault("KERAS_BACKEND", "torch")

TestPages = checked_pages("torch")
TestKerasPages = checked_pages("keras")
