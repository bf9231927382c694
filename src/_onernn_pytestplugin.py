"""What pytest loads by itself wherever onernn is installed: ONERNN_REQUIRE.

It names the frameworks that must be there ("paddle", or "paddle,torch"), so that no run passes by
skipping them. The suite itself is `onernn.verification.suite`. This file stands outside of the
package because pytest imports it in every run: onernn would bring NumPy along, early.
"""

from __future__ import annotations

import os
import re
from importlib.util import find_spec

VARIABLE = "ONERNN_REQUIRE"


def absent() -> list[str]:
    """The required modules that are not installed."""
    names = filter(None, re.split(r"[,\s]+", os.environ.get(VARIABLE, "")))
    return sorted(name for name in names if not name.isidentifier() or find_spec(name) is None)


def pytest_configure() -> None:
    """Stops the run where a required framework is missing."""
    if missing := absent():
        import pytest

        raise pytest.UsageError(f"{VARIABLE}: {', '.join(missing)} is not installed")
