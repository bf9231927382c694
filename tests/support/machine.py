"""What oneDNN and ONNX Runtime have on this CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from onernn.backend.onednn.library import load_library

needs_vnni = pytest.mark.skipif(
    not load_library().sums_u8_exactly, reason="this CPU has no VNNI, and so oneDNN no u8"
)

needs_bf16 = pytest.mark.skipif(
    not any(isa in load_library().effective_isa for isa in ("bf16", "fp16", "amx")),
    reason="this CPU has no bf16",
)

SATURATES = "vnni" not in Path("/proc/cpuinfo").read_text()
"""Whether ONNX Runtime adds pairs of products of bytes in 16 bits, and so cuts large ones off."""

cut_off_by_onnx_runtime = "without VNNI ONNX Runtime cuts sums of large products of bytes off"
