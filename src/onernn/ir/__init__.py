"""Graphs, types, ragged batches, specifications, weights and errors."""
