"""The backends that recordings run on, each by its name."""

from __future__ import annotations

import os

BACKENDS = os.environ.get("ONERNN_BACKENDS", "reference,onednn,kernels").split(",")
