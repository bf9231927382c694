"""onernn score --engine ray: killed, started again, and beside the local engine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from support.scoring import BAD, MODEL, corpus, written

ROWS = 20_000


@pytest.fixture(scope="module")
def table() -> pa.Table:
    return corpus(ROWS)


@pytest.fixture
def where(table: pa.Table, tmp_path: Path) -> Path:
    return written(tmp_path / "corpus", table, 4)


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """Two nodes, for all commands."""
    told = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in told.items():
            patch.setenv(name, value)
        from ray.cluster_utils import Cluster

        one = {"num_cpus": 2, "object_store_memory": 150 * 2**20}
        made = Cluster(initialize_head=True, head_node_args=one)
        made.add_node(**one)
        made.wait_for_nodes()
        patch.setenv("RAY_ADDRESS", made.address)
        yield
        made.shutdown()


def started(where: Path, output: Path, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "onernn.cli", "score", str(MODEL), str(where), str(output)]
    command += ["--engine", "ray", "--input", "letters=text", "--window", "500", *more]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, error = process.communicate(timeout=300)
    return process.returncode, out, error


def test_killed_and_started_again_the_files_are_those_of_the_local_engine(
    table: pa.Table, where: Path, tmp_path: Path
) -> None:
    output = tmp_path / "scored"
    process = started(where, output)
    deadline = time.monotonic() + 600
    while len(list(output.glob("*.parquet"))) < 5:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    done = len(list(output.glob("*.parquet")))
    code, out, error = ended(started(where, output, "--json"))
    assert code == 0, error[-2000:]
    summary = json.loads(out.splitlines()[-1])
    assert summary["rows"] == ROWS and summary["rejected"] == len(BAD)
    assert 0 < summary["windows_before"] <= done < summary["windows"]
    local = tmp_path / "local"
    assert ended(started(where, local, "--engine", "local"))[0] == 0
    assert files(output) == files(local)
    code, _, error = ended(started(where, output, "--words", "77"))
    assert code == 2 and "was begun with words 20000, now it is 77" in error


def files(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file()}


def test_strict_stops_with_one_message(where: Path, tmp_path: Path) -> None:
    code, _, error = ended(started(where, tmp_path / "scored", "--strict"))
    assert code == 2 and "onernn: row 3: " in error
