"""A model without the faults that `verify` proved: written, and verified on inputs of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from onernn.adapters.converting import write_model, writer_for
from onernn.adapters.loading import load
from onernn.fuse_passes import fuse
from onernn.ir.arrays import Array
from onernn.ir.errors import UnsupportedError
from onernn.ir.graph import Graph, Node
from onernn.ir.ragged import Batch
from onernn.ir.records import dataclass
from onernn.ir.rnn import Recurrent
from onernn.verification.diagnosis.cause import repaired
from onernn.verification.diagnosis.model_diff import shuffled
from onernn.verification.input_generation import make_inputs
from onernn.verification.recording import keyed_inputs
from onernn.verification.references import Against
from onernn.verification.tracing import expanded
from onernn.verification.verifying import Progress, Report, either, verify

SEEDS = (101, 102, 103)
"""Of the inputs that a repaired file is verified on; those that faults are looked for on have 0."""


@dataclass(frozen=True)
class Repair:
    """What was done to a model, and whether it is right now.

    ``changes``: lines, node by node. ``after``: the written file against the reference, on the
    first batch of `SEEDS` on which they differ, or on the last; None where nothing was written.
    ``refused``: why there is no file, "" where there is one.
    """

    changes: tuple[str, ...] = ()
    after: Report | None = None
    refused: str = ""

    def __bool__(self) -> bool:
        return not self.refused


def repair(
    report: Report,
    path: str | Path,
    against: Against,
    *,
    progress: Progress = lambda *_: None,
    note: Callable[[str], None] = lambda _: None,
    atol: float | None = None,
    rtol: float | None = None,
) -> Repair:
    """Undoes the causes of a report in its model, and writes that where it agrees with the
    reference on fresh inputs.

    ``report``: `verify`'s, of outputs that differ from those of ``against``. ``path``: of the file,
    of a kind that `onernn.convert` writes. Nothing is written, and what stands there stays, where a
    cause is only a candidate, cannot be undone in the model, or the file that is written differs.
    Raises `UnsupportedError` for what the file cannot say, and what `verify` raises.
    """
    path = Path(path)
    writer_for(path)  # refuse before all else
    evidence = report.evidence
    assert evidence is not None  # of a Report that `verify` made
    if not report.causes:
        return Repair(refused=report.stopped or "no known fault explains the difference")
    try:
        fixed = repaired(evidence.model, report.causes)
    except UnsupportedError as error:
        return Repair(refused=str(error))
    read = all(cause.form == "read" for cause in report.causes)
    before = evidence.model if read else expanded(fuse(evidence.model).model)[0]
    changes = tuple(differences(before, fixed))
    after: Report | None = None
    with TemporaryDirectory(dir=path.parent, prefix=".onernn-repair-") as folder:
        made = Path(folder, path.name)
        write_model(fixed, made, inputs=evidence.inputs, note=note)
        for given in _fresh(fixed, against, evidence.given, progress):
            after = verify(
                load(made),
                keyed_inputs(given),
                against=against,
                diagnose=False,
                atol=atol,
                rtol=rtol,
                progress=progress,
            )
            if not after.passed:
                return Repair(changes, after, "on fresh inputs the repaired file differs, too")
        for file in sorted(Path(folder).iterdir()):
            os.replace(file, path.parent / file.name)
    return Repair(changes, after)


def _fresh(
    model: Graph, against: Against, given: Mapping[str, Batch], progress: Progress
) -> Iterator[Mapping[str, Batch]]:
    """Batches that no search has seen; of the same numbers as ``given`` where none can be made."""
    for seed in SEEDS:
        progress("making fresh inputs", 0, 1)
        try:
            yield make_inputs(*either(model, against), empty=not against.kind, seed=seed)
        except UnsupportedError:
            yield shuffled(given, seed, lengths=False)


# --- what was changed in a graph, in lines for a reader


def differences(before: Graph, after: Graph) -> Iterator[str]:
    """A line for each node that came or went, and for each part of one that changed.

    Nodes are the same where their first outputs are.
    """
    old, new = ({node.outputs[0]: node for node in each.nodes} for each in (before, after))
    for value in after.inputs:
        if value.name not in {each.name for each in before.inputs}:
            yield f"+ input {value}"
    for name in [*old, *(name for name in new if name not in old)]:
        one, other = old.get(name), new.get(name)
        if one is None or other is None:
            node = one or other
            assert node is not None
            yield f"{'-' if other is None else '+'} {node.label}: {_written(node)}"
            continue
        for line in _changes(before, after, one, other):
            yield f"~ {one.label}: {line}"


def _written(node: Node) -> str:
    return f"{', '.join(filter(None, node.outputs))} = {node.op}({', '.join(node.inputs)})"


def _changes(before: Graph, after: Graph, one: Node, other: Node) -> Iterator[str]:
    if one.op != other.op:
        yield f"{_written(one)} -> {_written(other)}"
        return
    old, new = _content(before, one), _content(after, other)
    for name in [*old, *(name for name in new if name not in old)]:
        mine, theirs = old.get(name), new.get(name)
        if isinstance(mine, np.ndarray) and isinstance(theirs, np.ndarray):
            yield from _of_arrays(name, mine, theirs)
        elif mine is not theirs and mine != theirs:
            yield f"{name}: {_short(mine)} -> {_short(theirs)}"


def _content(graph: Graph, node: Node) -> dict[str, Any]:
    """What a node reads and is, by name: constants and weights as arrays."""
    content = {
        f"input {at}": graph.constants.get(name, name) for at, name in enumerate(node.inputs)
    }
    if node.op != "Rnn":
        return content | dict(node.attributes)
    rnn = Recurrent.of(node)
    content |= {each.name: getattr(rnn.spec, each.name) for each in fields(rnn.spec)}
    for at, layer in enumerate(rnn.layers):
        place = f"layer {at + 1}, " if len(rnn.layers) > 1 else ""
        content |= {f"{place}weights {name!r}": each for name, each in layer.arrays.items()}
    return content


def _of_arrays(name: str, one: Array, other: Array) -> Iterator[str]:
    if one.shape != other.shape or one.dtype != other.dtype:
        yield f"{name}: {one.dtype} {one.shape} -> {other.dtype} {other.shape}"
    elif not np.array_equal(one, other, equal_nan=one.dtype.kind == "f"):
        apart = one != other
        most = ""
        if one.dtype.kind == "f":
            far = np.abs(other.astype(np.float64) - one.astype(np.float64))[apart]
            most = f", by {far.max():.3g} at most"
        yield f"{name} {one.shape}: {np.count_nonzero(apart)} of {one.size} numbers{most}"


def _short(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape}"
    text = f"{value:.6g}" if isinstance(value, float) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
