"""PyTorch, which holds a oneDNN of its own inside, and ours in one process in either order."""

from __future__ import annotations

import pytest
from support.interpreters import run_python

BOTH = """
import sys
import numpy as np

def ours():
    from onernn.backend import open_backend
    from onernn.verification.doctor import Combination, examine_one
    for cell, dtype in (("GRU", "f32"), ("LSTM", "bf16"), ("LBR GRU", "u8")):
        wanted = Combination(cell, "left2right", dtype, "inference")
        finding = examine_one(open_backend("onednn"), wanted)
        assert finding.verdict in ("works", "slower path"), finding
        assert dtype != "f32" or "oneDNN" in finding.kernel, finding

def theirs():
    import torch
    assert torch.backends.mkldnn.is_available()
    torch.manual_seed(0)
    x, layer = torch.randn(5, 2, 3), torch.nn.LSTM(3, 4)
    with torch.no_grad():
        y = layer(x)[0]
        with torch.backends.mkldnn.flags(enabled=False):
            plain = layer(x)[0]
    assert torch.allclose(y, plain, atol=1e-6)

for turn in sys.argv[1:]:
    {"ours": ours, "theirs": theirs}[turn]()
"""


@pytest.mark.parametrize("turns", ["ours theirs ours", "theirs ours theirs"])
def test_both_run_in_one_process_in_either_order(turns: str) -> None:
    run_python("-c", BOTH, *turns.split())
