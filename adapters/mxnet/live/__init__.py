"""Our recurrent layers inside a live MXNet 1.9.1."""
