"""The records name kernels: they are compared on those of the oldest CPU, which run everywhere."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def oldest_cpu() -> None:
    if os.environ.get("ONERNN_MAX_ISA") != "v2":
        pytest.skip("compared with ONERNN_MAX_ISA=v2 only; run: make golden")
