"""Framework adapters: read a model, lower it to canonical operators."""
