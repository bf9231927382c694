"""MXNet: read its models without MXNet."""
