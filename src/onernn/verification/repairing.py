"""A model without the faults that `verify` proved: written, and verified on inputs of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from onernn.adapters.converting import write_model, writer_for
from onernn.adapters.loading import load
from onernn.fuse_passes import fuse
from onernn.ir.errors import UnsupportedError
from onernn.ir.graph import Graph
from onernn.ir.ragged import Batch
from onernn.ir.records import dataclass
from onernn.verification.diagnosis.cause import repaired
from onernn.verification.diagnosis.model_diff import shuffled
from onernn.verification.graph_differences import differences
from onernn.verification.input_generation import make_inputs
from onernn.verification.layer_names import expanded
from onernn.verification.recording import keyed_inputs
from onernn.verification.references import Against
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
    writer_for(path)  # told before all else
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
