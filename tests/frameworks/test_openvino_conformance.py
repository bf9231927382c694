"""Of OpenVINO and tract the conformance kit finds the failures that examples/conformance lists."""

from __future__ import annotations

import os
from pathlib import Path

from support.interpreters import run_python

REPO = Path(__file__).resolve().parents[2]


def test_the_known_failures_of_openvino_and_tract_are_all(tmp_path: Path) -> None:
    table = tmp_path / "table.md"
    options = ("-q", "-n", "0", "-p", "no:cacheprovider", f"--conformance-table={table}")
    command = ["-m", "pytest", *options, "-k", "odd and (given or Tract)"]
    environment = os.environ | {"ONERNN_REQUIRE": "openvino,tract,onnxruntime"}
    run_python(*command, REPO / "examples" / "conformance", env=environment)
    head, _, *rows = table.read_text().splitlines()
    assert head.count("(") == 3 and any("known" in row for row in rows)
