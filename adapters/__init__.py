"""Adapters for frameworks: each reads and writes its framework's files, and runs layers inside
it.
"""
