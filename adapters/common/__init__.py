"""What the frameworks share: the record of one, the lowering loop, files, live layers."""
