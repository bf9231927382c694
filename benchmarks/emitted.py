"""Runs the generated C++ of a model, compiled on this machine.

Each call starts a process, so the program compares outputs and measures no times.
"""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.models import Feed, Model, in_turn
from benchmarks.processes import ROOT
from benchmarks.tasks import Array, LeftOut, Prepared, Takes

PACKAGES = ("onernn", "pytest")
MODES = {"": Takes("onnx paddle mxnet")}
_FLAGS = ("-O2", "-march=native", "-ffp-contract=off")


def prepare(model: Model, _: str) -> Prepared:
    sys.path.append(str(ROOT / "tests"))
    from support.emitting import build

    from onernn import OnernnError, Ragged, Session, load
    from onernn.ir.graph import Value
    from onernn.ir.ragged import data_of

    folder = Path(model.file).with_name("emitted")  # the caller removes this folder
    session = Session(model.path, model.dtype, model.threads)
    graph = load(model.path)
    declared = {
        each.name: Value(each.name, each.dtype, tuple(None if n < 0 else n for n in entry["shape"]))
        for each in graph.inputs
        if not (entry := model.inputs[each.name]).get("ragged")
    }
    try:
        emitted = build({"whole": graph}, folder, _FLAGS, declared=declared)["whole"]
    except OnernnError as error:
        raise LeftOut(" ".join(str(error).split())) from None

    def run(feed: Feed) -> list[Array]:
        given = {n: Ragged(*v) if isinstance(v, tuple) else v for n, v in feed.items()}
        like = session.run(given)  # shows the outputs' sizes
        status, made = emitted.run(given, like)
        if status:
            raise RuntimeError(f"status {status}: {made}")
        return [made[n].reshape(data_of(y).shape).astype(data_of(y).dtype) for n, y in like.items()]

    return in_turn(model, run)
