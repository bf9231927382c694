"""Examples of public docstrings that need mxnet: they print what the docstrings show."""

from support.docstrings import checked_examples

TestExamples = checked_examples("mxnet")
