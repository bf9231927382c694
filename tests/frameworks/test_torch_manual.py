"""Blocks of the manual that need torch: they run, and print what their page shows."""

from support.framework_pages import checked_pages

TestPages = checked_pages("torch")
