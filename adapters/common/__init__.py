"""Code that all frameworks share: a framework's record, the lowering loop, files, live layers."""
