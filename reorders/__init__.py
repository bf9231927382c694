"""Converts weights between frameworks' layouts and oneDNN's: gate orders, signs and LoD."""
