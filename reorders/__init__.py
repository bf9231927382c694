"""Gate orders, signs and LoD: every framework's weight layouts to oneDNN's, and back."""
