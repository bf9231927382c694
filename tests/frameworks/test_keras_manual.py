"""Blocks of the manual that need keras: they run, and print what their page shows."""

from support.framework_pages import checked_pages

TestPages = checked_pages("keras")
