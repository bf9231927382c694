"""Examples of public docstrings that need paddle: they print what the docstrings show."""

import pytest
from support.docstrings import checked_examples

pytestmark = pytest.mark.usefixtures("dynamic_mode")
TestExamples = checked_examples("paddle")
