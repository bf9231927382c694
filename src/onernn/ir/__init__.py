"""The few central types: specification, weights, ragged batches, graphs and errors."""
