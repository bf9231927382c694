"""Files damaged at random, and what reads them."""
