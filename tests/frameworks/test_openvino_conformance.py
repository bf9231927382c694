"""Of OpenVINO and tract the conformance kit finds the failures that examples/conformance lists."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]


def test_the_known_failures_of_openvino_and_tract_are_all(tmp_path: Path) -> None:
    table = tmp_path / "table.md"
    options = ("-q", "-n", "0", "-p", "no:cacheprovider", f"--conformance-table={table}")
    command = [sys.executable, "-m", "pytest", *options, "-k", "odd and (given or Tract)"]
    done = subprocess.run(
        [*command, str(REPO / "examples" / "conformance")],
        env=os.environ | {"ONERNN_REQUIRE": "openvino,tract,onnxruntime"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr
    head, _, *rows = table.read_text().splitlines()
    assert head.count("(") == 3 and any("known" in row for row in rows)
