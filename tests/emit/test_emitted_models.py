"""Generated C++ of whole models: run twice, compared with an oracle.

ONERNN_EMIT_MODELS tells how many random models; from 100 on (`make emit`) all of the peers' cases
are taken, and sanitizers watch.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.checking import assert_close
from support.compiling import CHECKED, EMULATOR, PLAIN, compile_program
from support.emitting import Emitted, assert_computes, build
from support.graphs import new_node, reference, rnn_node, small
from support.onnx_models import read
from support.onnx_rnn import Case, array_of, ort_case, random_case, run_oracle

from onernn import Cell, Ragged, RnnSpec, UnsupportedError, load
from onernn.engine.emit import write_cpp
from onernn.engine.emit.pipeline import read_declared

MODELS = int(os.environ.get("ONERNN_EMIT_MODELS", "4"))
FLAGS = CHECKED if MODELS >= 100 else PLAIN

STATUSES = ["ok", "no_weights", "bad_sizes", "bad_index", "bad_lengths"]


@pytest.mark.long
def test_random_models_are_right_and_so_is_their_second_call(tmp_path: Path) -> None:
    cases = {f"random{seed}": random_case(seed) for seed in range(MODELS)}
    emitted = build({name: read(case.model()) for name, case in cases.items()}, tmp_path, FLAGS)
    for name, case in cases.items():
        want = {key: array for key, array in run_oracle(case).items() if key in case.outputs}
        assert_computes(emitted[name], case.feed(), want, atol=1e-6 + 8 * sensitivity(case, want))


def sensitivity(case: Case, want: dict[str, np.ndarray]) -> float:
    """What one rounding of every number changes: where unbounded functions explode, so do these."""
    eps = float(np.finfo(case.arrays["X"].dtype).eps)
    floats = {name: a for name, a in case.arrays.items() if a.dtype.kind == "f"}
    wide = {name: a.astype(np.float64) * (1 + eps) for name, a in floats.items()}
    moved = run_oracle(replace(case, arrays={**case.arrays, **wide}))
    return max(float(np.abs(moved[name] - array).max(initial=0)) for name, array in want.items())


def cases_of_onnx_runtime(peer_suites: Path) -> dict[str, dict[str, Any]]:
    cases = json.loads((peer_suites / "ort_rnn_cases.json").read_text())["cases"]
    every = 1 if MODELS >= 100 else 27
    return {f"ort{at}": case for at, case in enumerate(cases) if at % every == 0}


def test_cases_of_onnx_runtime_are_right_or_end_with_a_status(
    peer_suites: Path, tmp_path: Path
) -> None:
    chosen = cases_of_onnx_runtime(peer_suites)
    valid = {name: case for name, case in chosen.items() if not case["expect_failure"]}
    models = {name: read(ort_case(case).model()) for name, case in valid.items()}
    for begin in range(0, len(models), 45):
        names = list(models)[begin : begin + 45]
        emitted = build({name: models[name] for name in names}, tmp_path / str(begin))
        for name in names:
            feed = ort_case(valid[name]).feed()
            got = assert_computes(emitted[name], feed, reference(models[name], feed))
            for tensor in filter(None, valid[name]["outputs"]):
                theirs = 2e-5 + valid[name]["ort_1_31_max_abs_err"]  # printed with six digits
                assert_close(got[tensor["name"]], array_of(tensor).reshape(-1), atol=theirs)
    assert len(models) == 133 or MODELS < 100


def test_lengths_that_onnx_runtime_refuses_are_refused_or_a_status(
    peer_suites: Path, tmp_path: Path
) -> None:
    cases = json.loads((peer_suites / "ort_rnn_cases.json").read_text())["cases"]
    one, other = (ort_case(case) for case in cases if case["expect_failure"])
    with pytest.raises(UnsupportedError, match="expected equal sizes, got 1 and 2"):
        build({"one": read(one.model())}, tmp_path)
    emitted = build({"other": read(other.model())}, tmp_path)["other"]
    like = {v.name: np.zeros(18) for v in emitted.program.graph.outputs}
    assert emitted.run(other.feed(), like)[0] == 80 + STATUSES.index("bad_lengths")


def test_models_of_sofie_are_right_as_their_authors_saved_them(
    peer_suites: Path, tmp_path: Path
) -> None:
    cases = json.loads((peer_suites / "sofie" / "cases.json").read_text())["cases"]
    files = sorted({f for c in cases.values() for f in (c["model"], c["original"]) if f})
    files = files if MODELS >= 100 else files[::6]
    models = {Path(f).stem.lower(): load(peer_suites / "sofie" / f) for f in files}
    emitted = build(models, tmp_path)
    ran = 0
    for case in cases.values():
        x = np.array(case["X"], np.float32).reshape(case["X_shape"])
        for file in {case["model"], case["original"]} & set(files):
            model = models[Path(file).stem.lower()]
            feed = {model.inputs[0].name: x}
            made = emitted[Path(file).stem.lower()]
            got = assert_computes(made, feed, reference(model, feed))
            for name, numbers in case["reference"].items():
                own = list(got.values())[case["outputs"].index(name)]
                error = 1e-6 + case["oracle_max_abs_err"][name]
                assert_close(own, np.array(numbers), atol=error)
            ran += 1
    assert ran == len(files)


@pytest.fixture(scope="module")
def examples(repo: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Emitted]:
    models = {
        "segmenter": load(repo / "examples" / "segmenter"),
        "words": load(repo / "examples" / "mxnet_language_model"),
    }
    declared = {"segmenter": None, "words": read_declared(["data0=int32(T, N)"])}
    folder, made = tmp_path_factory.mktemp("examples"), dict[str, Emitted]()
    for name, model in models.items():
        made |= build({name: model}, folder / name, FLAGS, declared=declared[name])
    return made


@pytest.mark.long
def test_the_segmenter_tags_as_the_reference_does(examples: dict[str, Emitted]) -> None:
    emitted = examples["segmenter"]
    letters = np.random.default_rng(0).integers(0, 26, 40)
    feed = {"letters": Ragged(letters, np.array([0, 5, 5, 17, 18, 40]))}
    assert_computes(emitted, feed, reference(emitted.program.graph, feed))
    empty = {"letters": Ragged(letters[:0], np.array([0, 0]))}
    assert_computes(emitted, empty, reference(emitted.program.graph, empty))


def test_the_language_model_goes_word_by_word_as_over_the_whole_text(
    examples: dict[str, Emitted], repo: Path
) -> None:
    emitted, rng = examples["words"], np.random.default_rng(0)
    feed = {
        "data0": rng.integers(0, 2500, (7, 3)),
        "data1": rng.uniform(-1, 1, (2, 3, 128)).astype(np.float32),
        "data2": rng.uniform(-1, 1, (2, 3, 128)).astype(np.float32),
    }
    want = reference(load(repo / "examples" / "mxnet_language_model"), feed)
    assert_computes(emitted, feed, want)
    assert_computes(emitted, feed, want, "step")  # twice in one object, with a reset between


def test_what_a_call_cannot_do_is_a_status(examples: dict[str, Emitted]) -> None:
    emitted = examples["segmenter"]
    like = {v.name: np.zeros(40) for v in emitted.program.graph.outputs}

    def status(letters: list[int], offsets: list[int]) -> int:
        feed = {"letters": Ragged(np.array(letters), np.array([0, len(letters)]))}
        object.__setattr__(feed["letters"], "offsets", np.array(offsets))
        found, _ = emitted.run(feed, like)
        return int(found)

    assert status([1, 26, 3], [0, 3]) == 80 + STATUSES.index("bad_index")
    assert status([1, -1, 3], [0, 3]) == 80 + STATUSES.index("bad_index")
    for offsets in ([0, 2, 1, 3], [0, 4], [1, 3], [0, 2]):
        assert status([1, 2, 3], offsets) == 80 + STATUSES.index("bad_lengths")


HUGE = """
#include "gru.hpp"
#include <cstdio>
int main() {
  const gru::Weights weights;
  const std::int64_t most = INT64_MAX, wraps = (std::int64_t(1) << 60) + 1;  // 16 * wraps is 16
  for (const gru::Sizes sizes : {gru::Sizes{1, 1}, {most, 1}, {wraps, 1}, {1, most}, {1, wraps}}) {
    try {
      const gru::Model model(weights, sizes);
      std::printf("made ");
    } catch (const std::bad_alloc&) {
      std::printf("refused ");
    }
  }
}
"""


def test_sizes_whose_products_exceed_64_bits_are_refused(tmp_path: Path) -> None:
    nodes = (rnn_node("y = Rnn x", RnnSpec(Cell.GRU, 4, 16)), new_node("z = Tanh y"))
    write_cpp(small(nodes, {"x": [None, 4]}, "z"), tmp_path, name="gru", embed=True)
    (tmp_path / "huge.cpp").write_text(HUGE)
    compile_program(tmp_path / "huge.cpp", tmp_path / "huge", FLAGS, tmp_path)
    command = [*EMULATOR, tmp_path / "huge"]
    assert subprocess.check_output(command).split() == [b"made", *[b"refused"] * 4]
