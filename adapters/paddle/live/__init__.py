"""Our recurrent layers inside a live Paddle."""
