"""The harness of benchmarks/ in its short form. Nothing here depends on how long anything takes."""

from __future__ import annotations

import itertools
import json
import subprocess
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
from support.interpreters import run_python

HEAD = """
from benchmarks.tasks import LeftOut, Numbers, Prepared, Takes
import numpy as np

PACKAGES = ("numpy",)
MODES = {"": Takes("ragged dense")}

def versions():
    return {}

def prepare(task, mode):
    shape = sum(task.lengths), task.hidden_size * task.directions
"""
CONTENDERS = {
    "zeros": "    return Prepared(lambda: np.zeros(shape), lambda y: y)\n",
    "narrow": "    return Prepared(lambda: np.zeros((shape[0], 1)), lambda y: y)\n",
    "dying": "    import os; os.abort()\n",
    "raising": "    raise TypeError('no such operator')\n",
    "declining": "    raise LeftOut('only on Sundays')\n",
    "chatty": "    print('{}'); raise LeftOut('after a word on stdout')\n",
}
ABSENT = HEAD.replace('"numpy"', '"no_such_package"')
SILENT = HEAD + "    import time; time.sleep(600)\n"
BROKEN = HEAD + "    pass\n\ndef versions():\n    raise ImportError('libfoo.so.1 not found')\n"


def call(repo: Path, *options: str | Path) -> subprocess.CompletedProcess[str]:
    return run_python("-m", "benchmarks.run", *options, cwd=repo, status=None)


def run(
    repo: Path, out: Path, *contenders: str | Path, more: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    listed = ",".join(map(str, contenders))
    short = ("--workloads", "smoke", "--turns", "3", "--turn", "0.01", "--dirty")
    return call(repo, "--out", out, "--contenders", listed, *short, *more)


def written(folder: Path, name: str, text: str) -> Path:
    file = folder / f"{name}.py"
    file.write_text(text)
    return file


@pytest.fixture(scope="module")
def results(repo: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Ours and onnxruntime, among contenders that go wrong in every way."""
    folder = tmp_path_factory.mktemp("bench")
    files = [written(folder, name, HEAD + body) for name, body in CONTENDERS.items()]
    files += [written(folder, "absent", ABSENT), written(folder, "broken", BROKEN)]
    out = folder / "made" / "results.json"
    done = run(repo, out, "onernn", "onnxruntime", *files)
    assert done.returncode == 0, done.stderr
    return json.loads(out.read_text()) | {"table": out.with_suffix(".md").read_text()}


def contenders(results: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """What each row tells of a contender."""
    return [c for row in results["rows"] for c in row["contenders"] if c["name"] == name]


@pytest.mark.long
def test_ours_and_onnxruntime_are_checked_and_measured(results: dict[str, Any]) -> None:
    assert [row["row"] for row in results["rows"]] == ["LBR_GRU 8->16 bidirectional", "LSTM 8->16"]
    for name in ("onernn", "onnxruntime"):
        for told in contenders(results, name):
            assert 0 < told["max_abs"] < 2e-5
            assert 0 < told["min"] <= told["median"]
            assert told["calls"] >= len(told["turns"]) == 3
            assert told["median"] == pytest.approx(median(told["turns"]), rel=1e-3)


@pytest.mark.long
def test_ratios_are_those_of_the_times(results: dict[str, Any]) -> None:
    for row in results["rows"]:
        ours, peer = (
            next(c for c in row["contenders"] if c["name"] == name)
            for name in ("onernn", "onnxruntime")
        )
        assert row["best peer"] == "onnxruntime"
        for kind in ("median", "min"):
            assert row["faster"][kind] == pytest.approx(peer[kind] / ours[kind])
        assert row["roof"] > 0
        assert row["of roof"] == pytest.approx(row["roof"] / ours["median"])


@pytest.mark.long
@pytest.mark.parametrize("mode", ["onednn", "kernels"])
def test_what_the_default_chooses_from_has_a_column_of_its_own(
    results: dict[str, Any], mode: str
) -> None:
    head = next(line for line in results["table"].splitlines() if line.startswith("| ms "))
    told = contenders(results, f"onernn {mode}")
    assert len(told) == len(results["rows"]) == 2
    assert head.split(" | ").count(f"onernn {mode}") == 1
    for each in told:
        assert mode == "kernels" and each.get("left out") or 0 < each["max_abs"] < 2e-5


@pytest.mark.long
def test_what_the_times_depend_on_is_recorded(results: dict[str, Any]) -> None:
    assert {"onernn", "oneDNN", "isa", "onnxruntime"} <= set(results["versions"])
    assert results["cpu"] and len(results["load before"]) == len(results["load after"]) == 3
    assert all(row["threads"] == 1 and row["dtype"] == "f32" for row in results["rows"])


@pytest.mark.long
@pytest.mark.parametrize(
    "name, kind, reason",
    [
        ("zeros", "rejected", "apart"),
        ("narrow", "rejected", "shape: expected"),
        ("dying", "failed", "process ended: SIGABRT"),
        ("raising", "failed", "TypeError: no such operator"),
        ("declining", "left out", "only on Sundays"),
        ("chatty", "left out", "after a word on stdout"),
    ],
)
def test_whoever_is_wrong_or_fails_is_named_and_not_measured(
    results: dict[str, Any], name: str, kind: str, reason: str
) -> None:
    told = contenders(results, name)
    assert len(told) == 2
    for each in told:
        assert reason in each[kind]
        assert "median" not in each
    assert f"- {name} {kind}: " in results["table"]


@pytest.mark.long
@pytest.mark.parametrize(
    "name, reason",
    [("absent", "not installed: no_such_package"), ("broken", "libfoo.so.1 not found")],
)
def test_a_peer_that_is_not_there_is_named_and_left_out(
    results: dict[str, Any], name: str, reason: str
) -> None:
    assert reason in results["left out"][name]
    assert not contenders(results, name)
    assert f"- left out: {name}, " in results["table"]


@pytest.mark.long
def test_whoever_does_not_answer_is_given_up(repo: Path, tmp_path: Path) -> None:
    silent = written(tmp_path, "silent", SILENT)
    more = ("--only", "lstm", "--patience", "1")
    done = run(repo, tmp_path / "results.json", silent, more=more)
    assert done.returncode == 0
    assert "no answer in 1 seconds" in done.stdout


@pytest.mark.long
def test_if_ours_is_wrong_the_run_fails(repo: Path, tmp_path: Path) -> None:
    ours = written(tmp_path, "onernn", HEAD + CONTENDERS["zeros"])
    done = run(repo, tmp_path / "results.json", ours)
    assert done.returncode == 1
    assert "onernn rejected: " in done.stdout


@pytest.mark.parametrize(
    "wrong, message",
    [
        (["--workloads", "ragged,racked"], "--workloads: expected some of smoke, ragged"),
        (["--dtypes", "f64"], "--dtypes: expected some of f32, bf16, u8, got 'f64'"),
        (["--contenders", "onernn,tensorflow"], "got 'tensorflow'"),
        (["--threads", "0"], "--threads: expected numbers of at least 1, got '0'"),
        (["--threads", "1,"], "--threads: expected numbers of at least 1, got '1,'"),
        (["--python", "snake=python"], "--python: expected some of mxnet, onernn"),
        (["--only", "no such row"], "leave no row"),
        (["--only", "("], "unterminated"),
        (["--out", "results.md"], "--out: expected a name that ends in .json"),
    ],
)
def test_wrong_options_are_one_message(
    repo: Path, tmp_path: Path, wrong: list[str], message: str
) -> None:
    done = call(repo, "--out", tmp_path / "results.json", *wrong)
    assert done.returncode == 2
    assert message in done.stderr and len(done.stderr.splitlines()) == 1


@pytest.mark.long
def test_the_report_is_made_from_the_file(
    repo: Path, tmp_path: Path, results: dict[str, Any]
) -> None:
    file = tmp_path / "results.json"
    file.write_text(json.dumps(results))
    command = "-m", "benchmarks.report", "--dirty", file
    done = run_python(*command, cwd=repo)
    assert file.with_suffix(".md").read_text() == results["table"]
    if find_spec("matplotlib"):
        assert "<svg" in file.with_suffix(".svg").read_text()
    else:
        assert "pip install matplotlib" in done.stderr
    file.write_text("{}")
    assert "results.json" in run_python(*command, cwd=repo, status=2).stderr


RESULTS = {
    "date": "2030-01-02T03:04:05",
    "commit": "abc1234",
    "cpu": "AMD EPYC",
    "core": "AMD Zen 4",
    "cores": 2,
    "platform": "Linux",
    "versions": {},
    "peaks": {},
    "left out": {},
    "rows": [
        {"workload": "ragged", "dtype": dtype, "threads": 1, "row": "LSTM 8->16", "roof": 1.0,
         "contenders": [{"name": "onernn", "median": 2.0}]}
        for dtype in ("f32", "bf16")
    ],
}  # fmt: skip


def test_a_page_is_titled_by_its_machine(module: Any) -> None:
    title = module("report").title
    assert title(RESULTS) == "AMD Zen 4, 2 cores, float32 and bfloat16, ragged batches"
    older = {**RESULTS, "core": "", "rows": RESULTS["rows"][:1]}
    assert title(older) == "AMD EPYC, 2 cores, float32, ragged batches"
    head, _, date = module("report").markdown(RESULTS).splitlines()[:3]
    assert head == f"# {title(RESULTS)}" and "2030-01-02" in date and "abc1234" in date


def test_a_checkout_with_changes_gets_a_page_only_if_asked(module: Any, tmp_path: Path) -> None:
    file, main = tmp_path / "results.json", module("report").main
    file.write_text(json.dumps({**RESULTS, "commit": "abc1234-dirty"}))
    assert main([str(file)]) == 2 and not file.with_suffix(".md").exists()
    assert main(["--dirty", str(file)]) == 0
    assert "(uncommitted changes)" in file.with_suffix(".md").read_text().splitlines()[0]


def test_pages_of_results_are_made_from_their_files(module: Any, repo: Path) -> None:
    files = [*(repo / "benchmarks" / "results").glob("*.json")]
    assert files
    for file in files:
        made = module("report").markdown(json.loads(file.read_text()))
        assert file.with_suffix(".md").read_text() == made, file
    for file in (repo / "benchmarks" / "results").glob("*.md"):
        title = file.read_text().splitlines()[0]
        assert title.startswith(("# AMD ", "# Intel ")), title


@pytest.mark.parametrize(
    "family, model, core",
    [(23, 1, "Zen"), (23, 49, "Zen 2"), (25, 1, "Zen 3"), (25, 17, "Zen 4"), (26, 2, "Zen 5")],
)
def test_amds_cores_are_known_by_family_and_model(
    module: Any, family: int, model: int, core: str
) -> None:
    told = {"vendor_id": "AuthenticAMD", "cpu family": str(family), "model": str(model)}
    assert module("run").named_core(told) == f"AMD {core}"
    assert module("run").named_core({**told, "vendor_id": "GenuineIntel"}) == ""


def operations(dtype: str, threads: int, m: int, k: int, n: int) -> float:
    """Of a product: at one second each, its time."""
    return 2.0 * m * k * n


class TestWithoutProcesses:
    """The parts that need no contender."""

    @pytest.mark.parametrize("name", ["onernn kernels", "paddle onernn"])
    def test_ours_is_no_peer_under_any_name(self, module: Any, name: str) -> None:
        times = {"onernn": 2.0, name: 1.0, "torch packed": 3.0}
        told = [{"name": n, "median": ms, "min": ms} for n, ms in times.items()]
        made = module("measuring").ratios({"contenders": told}, 1.0)
        assert made["best peer"] == "torch packed" and made["faster"]["median"] == 1.5

    def test_a_cpu_clock_of_long_ticks_still_tells_a_call_s_share(
        self, module: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A clock that moves once in 1,000 calls, as some machines' do: no call of one costs 0."""
        calls = []
        monkeypatch.setattr("time.process_time", lambda: len(calls) // 1000)
        prepared = module("tasks").Prepared(lambda: calls.append(None), lambda y: y)
        told = module("worker").timed(prepared, 0.0)
        assert told["calls"] == 999 and told["cpu"] == pytest.approx(1 / 999)

    def test_a_turn_in_which_others_had_the_machine_has_a_call(
        self, module: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The turn is over before its first call."""
        looks = itertools.count()
        for clock in ("process_time", "perf_counter"):
            monkeypatch.setattr(f"time.{clock}", lambda: next(looks))
        told = module("worker").timed(module("tasks").Prepared(lambda: None, lambda y: y), 0.5)
        assert told["calls"] == 1 and told["cpu"] > 0

    def test_every_workload_gives_tasks(self, module: Any) -> None:
        w, t = module("workloads"), module("tasks")
        for workload in w.workloads().values():
            assert set(workload.get("dtypes", [])) <= set(t.DTYPES)
            for task in w.tasks(workload):
                assert task.kind in t.KINDS and task.cell in t.GATES
                assert t.Task.from_json(json.loads(json.dumps(task.to_json()))) == task

    def test_the_ragged_workload_is_the_one_that_peers_were_measured_with(
        self, module: Any
    ) -> None:
        w = module("workloads")
        for task in w.tasks(w.workloads()["ragged"]):
            assert (task.batch, sum(task.lengths), task.time) == (64, 1028, 63)

    @pytest.mark.parametrize("kind, forwards", [("ragged", 1), ("training", 3)])
    def test_the_roof_of_a_steady_machine_is_its_work_without_padding(
        self, module: Any, kind: str, forwards: int
    ) -> None:
        """At one second an operation the roof counts operations, sentence by sentence."""
        task = module("tasks").Task(kind, "lstm", 3, 5, (4, 1, 7), 2, 2)
        count = 0
        for length in task.lengths:
            for inputs in (3, 10):  # 2 layers, 2 directions of 4 gates
                count += 2 * 2 * 4 * 5 * (inputs + 5) * length
        assert module("roof").roof(task, operations) == pytest.approx(forwards * count)
        assert task.flops == forwards * count

    def test_two_threads_may_run_two_directions_at_once(self, module: Any) -> None:
        task = module("tasks").Task("dense", "gru", 1, 64, (9,), 1, 2, threads=2)
        # Nothing is faster with two threads inside a product; input products take no time.
        of = lambda dtype, threads, m, k, n: 1.0 if k == 64 else 1e-30  # noqa: E731
        assert module("roof").roof(task, of) == pytest.approx(9)

    def test_the_limit_of_a_machine_that_reads_slowly_is_the_bytes_of_each_step(
        self, module: Any
    ) -> None:
        task = module("tasks").Task("ragged", "lstm", 3, 5, (4, 1, 7), 2, 2, dtype="bf16")
        matrix = 4 * 5 * 5 * 2  # of one layer and direction, in bytes
        weights = 2 * (4 * 5 * 3 * 2) + 2 * (4 * 5 * 10 * 2)  # of both layers' inputs
        words = 12 * (3 + 2 * 5) * 4
        found = module("limits").limit(
            task, lambda *product: 1e-30 * operations(*product), lambda size, threads: 1.0
        )
        assert found == (pytest.approx(7 * 4 * matrix + weights + words), "bytes")

    def test_the_limit_of_a_machine_that_computes_slowly_is_its_work(self, module: Any) -> None:
        task = module("tasks").Task("training", "gru", 3, 5, (4, 1, 7))
        found = module("limits").limit(task, operations, lambda size, threads: 1e30)
        assert found == (pytest.approx(task.flops), "operations")

    def test_what_is_nearer_is_read_no_slower(self, module: Any) -> None:
        reads = module("limits").Reads()
        assert 0 < reads.best(1 << 26, 1) < np.inf
        assert reads.measured(1 << 16, 2) <= reads.measured(1 << 16, 2)  # the best so far

    @pytest.mark.parametrize(
        "faster, of_limit, found",
        [(1.1, 0.1, "met"), (1.0, 0.86, "the limit"), (1.0, 0.84, "missed")],
    )
    def test_a_target_is_met_or_the_limit_is_near(
        self, module: Any, faster: float, of_limit: float, found: str
    ) -> None:
        bound = module("limits").Limit(2e-3 * of_limit, "bytes")
        told = [("onernn", 2.0), ("torch", 2.0 * faster)]
        row = {"contenders": [{"name": n, "median": ms, "min": ms} for n, ms in told]}
        made = module("measuring").ratios(row, 1.0, bound, 1.1)
        assert made["verdict"] == found and made["of limit"] == pytest.approx(of_limit)
        assert made["limit"] == {"ms": pytest.approx(2 * of_limit), "of": "bytes"}

    @pytest.mark.parametrize(
        "row, dtype, threads, wanted",
        [
            ("LBR_GRU 128->256 2-layer bidirectional", "bf16", 1, 2.2),
            ("LBR_GRU 512->512", "bf16", 2, 2.0),
            ("LSTM 512->512 2-layer bidirectional", "u8", 1, 1.6),
            ("LSTM 512->512", "f32", 2, 2.1),
            ("LSTM 25x4x512x512", "f32", 1, 1.1),
            ("LSTM 25x32x512x512", "f32", 1, 1.0),
            ("LSTM 25x4x512x512", "bf16", 2, 1.05),
        ],
    )
    def test_the_first_target_that_fits_a_row_counts(
        self, module: Any, row: str, dtype: str, threads: int, wanted: float
    ) -> None:
        w = module("workloads")
        (found,) = {
            w.target(workload, task.with_(dtype=dtype, threads=threads))
            for workload in map(w.workloads().get, ("ragged", "dense"))
            for task in w.tasks(workload)
            if str(task) == row
        }
        assert found == wanted

    def test_u8_that_is_not_our_fastest_is_recorded(self, module: Any) -> None:
        def row(dtype: str, ms: float) -> dict[str, Any]:
            told = [
                {"name": n, "median": ms * k, "min": ms * k} for n, k in (("onernn", 1), ("t", 3))
            ]
            made = {"workload": "ragged", "row": "GRU", "dtype": dtype, "threads": 1}
            made["contenders"] = told
            bound = module("limits").Limit(1e-3, "bytes")
            return made | module("measuring").ratios(made, 1.0, bound, 2.0)

        def told(ms: float) -> str:
            rows = [row("bf16", 2.0), row("u8", ms)]
            return "\n".join(module("report")._targets(rows))

        assert "u8 is not faster than bf16: GRU, 1 thread" in told(2.5)
        assert "not faster" not in told(1.5)

    def test_padding_goes_and_comes_back(self, module: Any, tmp_path: Path) -> None:
        t = module("tasks")
        words = np.arange(12, dtype=np.float32).reshape(6, 2)
        np.savez(tmp_path / "task.npz", words=words)
        task = t.Task("ragged", "gru", 2, 3, (1, 3, 2), file=str(tmp_path / "task.npz"))
        numbers = t.Numbers(task)
        assert numbers.padded[:, 0].tolist() == [[0, 1], [0, 0], [0, 0]]
        assert numbers.padded[:, 2].tolist() == [[8, 9], [10, 11], [0, 0]]
        assert numbers.unpadded(numbers.padded).tolist() == words.tolist()
        assert task.running.tolist() == [3, 2, 1]
