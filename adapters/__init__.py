"""Frameworks: reads and writes their files, and runs inside them."""
