"""Each fault that an audit predicts happens in Paddle, and its outputs are the predicted ones."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.faulty import predicted
from tests.frameworks import paddle_paths
from tests.frameworks.paddle_graphs import Variable, differences
from tests.frameworks.record_paddle import Builder

from onernn import Ragged, audit, load
from onernn.adapters.loading import find_faults
from onernn.ir.arrays import Array

I, O = 4, 5  # noqa: E741
GRU_FUNCTIONS = {"activation": "tanh", "gate_activation": "sigmoid"}
LSTM_FUNCTIONS = {
    "gate_activation": "sigmoid",
    "cell_activation": "tanh",
    "candidate_activation": "tanh",
}


class Build(Builder):
    """A graph with numbers so large that what a fault changes is seen."""

    def __init__(self, size: int = O) -> None:
        self.size = size
        super().__init__(5)

    def array(self, *shape: int) -> Array:
        return (self.rng.uniform(-1.5, 1.5, shape) / self.size**0.5).astype(np.float32)

    def states(self, *slots: str) -> dict[str, Variable]:
        return {slot: self.graph.feed(slot.lower(), [-1, self.size]) for slot in slots}

    def layer(self, kind: str, *states: str, fc: bool = True, **attributes: Any) -> Any:
        """Hidden, and Cell of an LSTM, of an input that is projected already or of x."""
        options, gates = {"origin_mode": False, **GRU_FUNCTIONS}, 3
        if kind.endswith("lstm"):
            options, gates = {"use_peepholes": False, **LSTM_FUNCTIONS}, 4
        wide, bias = gates * self.size, attributes.pop("bias", None)
        if kind.startswith("fusion"):
            slots, weight = {"X": self.x, "WeightX": self.parameter(I, wide)}, "WeightH"
            options["use_seq"] = True
        else:
            project = self.fc if fc and kind == "gru" else self.mul
            slots, weight = {"Input": project(self.x, I, wide)}, "Weight"
        slots |= {weight: self.parameter(self.size, wide)}
        slots |= {"Bias": bias or self.parameter(1, wide), **self.states(*states)}
        return self.op(kind, **slots, **{"is_reverse": False, **options, **attributes})

    def hidden(self, kind: str, *states: str, **more: Any) -> Variable:
        made = self.layer(kind, *states, **more)
        return made[0] if isinstance(made, tuple) else made


def shared(build: Build) -> list[Variable]:
    """One GRU's bias read by a fused one, one without a bias of its projection, one left alone."""
    bias = build.parameter(1, 3 * O)
    plain = build.op("elementwise_add", X=build.mul(build.x, I, 3 * O), Y=bias)
    options: Any = ({}, {"is_reverse": True}, {"fc": False}, {"origin_mode": True})
    return [*(build.hidden("gru", bias=bias, **each) for each in options), plain]


CASES: dict[str, tuple[Callable[[Build], list[Variable]], str, str]] = {
    "state of a gru": (lambda b: [b.hidden("gru", "H0")], "state_dropped", "fused onednn"),
    "state of a bare gru": (
        lambda b: [b.hidden("gru", "H0", fc=False, is_reverse=True)],
        "state_dropped",
        "fused onednn",
    ),
    "states of an lstm": (
        lambda b: [b.hidden("lstm", "H0", "C0")],
        "state_dropped",
        "fused onednn",
    ),
    "functions of an lstm": (
        lambda b: [b.hidden("lstm", candidate_activation="relu")],
        "activations_dropped",
        "fused onednn",
    ),
    "a bias for five": (shared, "bias_shared", "fused onednn"),
    "origin_mode": (
        lambda b: [b.hidden("fusion_gru", origin_mode=True)],
        "origin_mode_ignored",
        "plain fused",
    ),
    "origin_mode, batched": (
        lambda b: [b.hidden("fusion_gru", origin_mode=True, use_seq=False, is_reverse=True)],
        "origin_mode_ignored",
        "plain fused",
    ),
}


EMPTY = {
    "gru": "fused",
    "lstm": "fused",
    "fusion_gru": "plain",
    "fusion_gru, batched": "plain",
    "fusion_lstm, batched": "plain",
}
LENGTHS = [0 if n in (3, 40) else 60 + 37 * n % 151 for n in range(150)]
LENGTHS.append(240 + (1 - sum(LENGTHS)) % 16)
"""No two of a length but zero: Paddle sorts them, and not stably. In all 16 k + 1 words: the last
page of each array has 3 KB left."""

WIDE = 64
ROOMY = {"MALLOC_MMAP_THRESHOLD_": "131072"}
"""So that arrays are large: glibc gives these pages of their own, and what a kernel writes behind
its arrays falls into the rest of the last page. Small arrays crash Paddle more often than not."""


def made(name: str, folder: Path) -> dict[str, Array]:
    """The saved model, and a batch for it."""
    build = Build()
    build.graph.save(folder, CASES[name][0](build))
    return batch(folder, (3, 2, 4), build.rng)


def batch(folder: Path, lengths: Sequence[int], rng: np.random.Generator) -> dict[str, Array]:
    given = {"lod__x": np.cumsum([0, *lengths])}
    for value in load(folder).inputs:
        rows = sum(lengths) if value.lod_depth else len(lengths)
        numbers = rng.uniform(-1, 1, (rows, value.shape[1]))
        given[f"in__{value.name}"] = numbers.astype(np.float32)
    return given


def paddle_gives(
    folder: Path, paths: Sequence[str], *batches: Mapping[str, Array]
) -> dict[str, list[Array]]:
    """The outputs on each path for the last of the batches, which follow one another.

    Raises `subprocess.SubprocessError` where Paddle crashes or hangs.
    """
    given, out = folder / "in.npz", folder / "out.npz"
    np.savez(
        given, **{f"{n}/{key}": a for n, each in enumerate(batches) for key, a in each.items()}
    )
    command = [sys.executable, paddle_paths.__file__, folder, ",".join(paths), given, out]
    environment = {**os.environ, **ROOMY}
    subprocess.run(command, check=True, capture_output=True, timeout=600, env=environment)
    with np.load(out) as found:
        last, count = len(batches) - 1, len(found) // len(paths) // len(batches)
        return {path: [found[f"{path}/{last}/out__{k}"] for k in range(count)] for path in paths}


def words(outputs: Mapping[str, Any]) -> dict[str, Array]:
    return {name: v.data if isinstance(v, Ragged) else v for name, v in outputs.items()}


@pytest.mark.parametrize("name", CASES)
def test_paddle_gives_what_its_faults_predict(name: str, tmp_path: Path) -> None:
    given = made(name, tmp_path)
    _, fault, paths = CASES[name]
    report = audit(tmp_path, given)
    found = {each.fault: each for each in report.findings if each.counts}
    assert found.keys() == {fault}
    right = words(predicted(find_faults(tmp_path), "none", given))
    assert set(paths.split()) <= set(found[fault].paths)
    for path, outputs in paddle_gives(tmp_path, paths.split(), given).items():
        assert not differences(words(predicted(find_faults(tmp_path), path, given)), outputs)
        error = max(np.abs(a - b).max() for a, b in zip(right.values(), outputs, strict=True))
        assert abs(error - found[fault].max_abs) < 2e-6 < 1e-2 < error


@pytest.mark.parametrize("kind", EMPTY)
def test_empty_sentences_are_misread_as_predicted(kind: str, tmp_path: Path) -> None:
    build, path = Build(WIDE), EMPTY[kind]
    operator, _, batched = kind.partition(", ")
    options = {"use_seq": False} if batched else {}
    build.graph.save(tmp_path, [build.hidden(operator, **options)])
    given = batch(tmp_path, LENGTHS, build.rng)
    (found,) = (each for each in audit(tmp_path, given).findings if each.counts)
    assert found.fault == "empty_sentences" and path in found.paths
    outputs = paddle_gives(tmp_path, [path], given)[path]
    assert not differences(words(predicted(find_faults(tmp_path), path, given)), outputs)
    (right,) = words(predicted(find_faults(tmp_path), "none", given)).values()
    assert abs(np.abs(right - outputs[0]).max() - found.max_abs) < 2e-6 < 1e-2 < found.max_abs


@pytest.mark.parametrize("name", ["state of a gru", "functions of an lstm", "origin_mode"])
def test_paddle_is_right_on_the_paths_that_an_audit_does_not_name(
    name: str, tmp_path: Path
) -> None:
    given = made(name, tmp_path)
    right = words(predicted(find_faults(tmp_path), "none", given))
    path = "onednn" if name == "origin_mode" else "plain"
    assert not differences(right, paddle_gives(tmp_path, [path], given)[path])


@pytest.mark.parametrize("kind", ["fusion_gru", "fusion_lstm"])
def test_the_second_batch_starts_from_the_states_of_the_first(kind: str, tmp_path: Path) -> None:
    """The audit shows neighbours' states: so the first batch has them."""
    build = Build()
    states = ("H0", "C0") if kind == "fusion_lstm" else ("H0",)
    build.graph.save(tmp_path, [build.hidden(kind, *states)])
    second = batch(tmp_path, (3, 2, 4), build.rng)
    first = {
        key: np.roll(array, 1, axis=0) if key in ("in__h0", "in__c0") else array
        for key, array in second.items()
    }
    report = audit(tmp_path, second)
    (found,) = (each for each in report.findings if each.counts)
    assert (found.fault, found.paths) == ("state_stale", ("onednn",))
    outputs = paddle_gives(tmp_path, ["onednn"], first, second)["onednn"]
    assert not differences(words(predicted(find_faults(tmp_path), "onednn", second)), outputs)
    assert found.max_abs > 1e-2


@pytest.mark.parametrize("kind", ["lstm", "fusion_lstm"])
def test_who_reads_an_unwritten_cell_crashes_paddle(kind: str, tmp_path: Path) -> None:
    build = Build()
    hidden, cell = build.layer(kind)
    build.graph.save(tmp_path, [hidden, build.op("tanh", X=cell)])
    given = batch(tmp_path, (3, 2), build.rng)
    (found,) = (each for each in audit(tmp_path, given).findings if each.counts)
    assert (found.fault, found.effect) == ("cell_unwritten", "crashes")
    with pytest.raises(subprocess.CalledProcessError):
        paddle_gives(tmp_path, ["onednn"], given)


@pytest.mark.parametrize("kind", ["fusion_gru", "fusion_lstm"])
def test_onednn_refuses_other_activations(kind: str, tmp_path: Path) -> None:
    build = Build()
    name = "activation" if kind == "fusion_gru" else "candidate_activation"
    build.graph.save(tmp_path, [build.hidden(kind, **{name: "relu"})])
    given = batch(tmp_path, (3, 2), build.rng)
    (found,) = (each for each in audit(tmp_path, given).findings if each.counts)
    assert (found.fault, found.effect) == ("activations_refused", "refuses")
    with pytest.raises(subprocess.CalledProcessError):
        paddle_gives(tmp_path, ["onednn"], given)


@pytest.mark.parametrize("bias", [True, False])
def test_what_an_audit_calls_not_fused_is_right_everywhere(bias: bool, tmp_path: Path) -> None:
    build = Build()
    build.graph.save(tmp_path, [build.hidden("gru", "H0", origin_mode=True, fc=bias)])
    given = batch(tmp_path, (3, 2), build.rng)
    report = audit(tmp_path, given)
    assert report and "not_fused" in {each.fault for each in report.findings}
    right = words(predicted(find_faults(tmp_path), "none", given))
    for path in ("fused", "onednn"):
        assert not differences(right, paddle_gives(tmp_path, [path], given)[path])
