"""Examples of public docstrings that need apache_beam: they print what the docstrings show."""

from support.docstrings import checked_examples

TestExamples = checked_examples("apache_beam")
