"""The examples at the array level do what they say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.interpreters import run_python


@pytest.mark.parametrize("cell", ["lstm", "gru", "lbr_gru"])
def test_u8_inference_stays_near_float64(repo: Path, cell: str) -> None:
    done = run_python(repo / "examples" / "u8_inference.py", "--cell", cell, "--units", 64)
    errors = {
        line.split("  ")[0].strip(): float(found[1])
        for line in done.stdout.splitlines()
        if (found := re.search(r"max error (\S+),", line))
    }
    assert list(errors) == ["f32", "u8", "u8, calibrated"]
    # x in [-2, 2] has steps of 2/127, each off by 0.0045 on average; 128 of them, times weights of
    # 1/8/sqrt(3), move a gate by 0.004 on average and by five times that among 10**5 gates. A state
    # has steps of 1/127, or of 2/127 under the same scale.
    assert errors["f32"] < 1e-5 and errors["u8"] < 4e-2 and errors["u8, calibrated"] < 4e-2
