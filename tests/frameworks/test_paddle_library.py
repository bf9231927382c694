"""Paddle's libdnnl and ours: both in one process in either order, and Paddle's instead of ours.

Paddle 2.6.2 brings oneDNN 3.2, Paddle 3.3.1 brings 3.6 under the same SONAME.
"""

from __future__ import annotations

import json
import os
import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from support.interpreters import run_python

BACKEND = Path(__file__).resolve().parents[1] / "backend"

BOTH = """
import sys, zlib
import numpy as np, numpy.random  # paddle 2.6.2 wants it and zlib to be there before

def ours():
    from onernn.backend import open_backend
    from onernn.backend.onednn.library import other_copies
    from onernn.verification.doctor import Combination, examine_one
    for cell, dtype in (("GRU", "f32"), ("LSTM", "bf16"), ("LBR GRU", "u8")):
        combination = Combination(cell, "left2right", dtype, "inference")
        finding = examine_one(open_backend("onednn"), combination)
        assert finding.verdict in ("works", "slower path"), finding
        assert dtype != "f32" or "oneDNN" in finding.kernel, finding
    return other_copies()

def theirs():
    import paddle
    paddle.set_flags({"FLAGS_use_mkldnn": True})
    x = np.linspace(-1, 1, 2 * 3 * 8 * 8).reshape(2, 3, 8, 8).astype("float32")
    pool = paddle.nn.functional.avg_pool2d(paddle.to_tensor(x), 2).numpy()
    assert np.allclose(pool, x.reshape(2, 3, 4, 2, 4, 2).mean((3, 5)), atol=1e-6)
    dot = paddle.matmul(paddle.to_tensor(x), paddle.to_tensor(x)).numpy()
    assert np.allclose(dot, x @ x, atol=1e-5)

for turn in sys.argv[1:]:
    {"ours": ours, "theirs": theirs}[turn]()
print(*ours())
"""


@pytest.fixture(scope="module")
def library() -> Path:
    """The libdnnl inside Paddle's wheel; Paddle itself is not imported."""
    found = find_spec("paddle")
    assert found is not None and found.submodule_search_locations
    (path,) = (
        Path(folder) / "libs" / "libdnnl.so.3" for folder in found.submodule_search_locations
    )
    return path


@pytest.mark.parametrize("turns", ["ours theirs ours", "theirs ours theirs"])
def test_both_run_in_one_process_in_either_order(library: Path, turns: str) -> None:
    done = run_python("-c", BOTH, *turns.split())
    assert done.stdout.splitlines()[-1].split() == [str(library)]  # two copies were there


@pytest.fixture(scope="module")
def examination(library: Path) -> dict:
    code = "from onernn.cli import main; main()"
    command = "doctor --full --json --backend onednn --threads 1".split()
    environment = os.environ | {"ONERNN_DNNL_LIBRARY": str(library)}
    return json.loads(run_python("-c", code, *command, env=environment).stdout)


def test_the_doctor_finds_no_wrong_number_with_paddles_library(
    library: Path, examination: dict
) -> None:
    assert examination["status"] == "pass" and examination["path"] == str(library)
    verdicts = {f["verdict"] for f in examination["findings"] if f["dtype"] == "f32"}
    assert verdicts <= {"works", "slower path"}


def test_f16_is_right_where_library_and_cpu_have_it(examination: dict) -> None:
    found = [f for f in examination["findings"] if f["dtype"] == "f16"]
    inference = [f for f in found if f["mode"] == "inference"]
    version, isa = examination["version"], examination["isa"]
    if tuple(map(int, version.split(".")))[:2] < (3, 6) or not re.search("fp16|avx10", isa):
        assert {f["verdict"] for f in inference} <= {"slower path", "never ran"}
        assert all("f16" in f["reason"] for f in inference)
        pytest.skip(f"oneDNN {version} on {isa} has no f16")
    refused = [f for f in inference if "projection" in f["cell"] or f["cell"] in ("GRU", "AUGRU")]
    assert {f["verdict"] for f in refused} <= {"slower path", "never ran"}
    ran = [f for f in inference if f not in refused]
    assert {f["verdict"] for f in ran} == {"works"}
    assert all(f["max_error"] > 1e-5 for f in ran)  # not float32 in disguise


@pytest.mark.parametrize("file", ["wrong_numbers", "layers", "narrow_types", "bad_input"])
def test_the_tests_of_the_backend_pass_with_paddles_library(library: Path, file: str) -> None:
    environment = os.environ | {"ONERNN_DNNL_LIBRARY": str(library), "CI": "1"}
    run_python("-m", "pytest", "-q", BACKEND / f"test_{file}.py", env=environment)
