"""What is fuzzed: the files of a model, whatever is in them, through all that reads them.

A target puts bytes in the place of one file of a small real model and does with the model what the
command line does. Nothing but results and `OnernnError` may come of it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import os
import shutil
import signal
import traceback
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from fuzz import mutations
from onernn import OnernnError, Session, convert, fuse, load, verify
from onernn.adapters.registry import ADAPTERS
from onernn.adapters.stacks import read_stacks
from onernn.engine.emit.pipeline import write_cpp
from onernn.verification import input_generation
from onernn.verification.recording import read_arrays, read_inputs

# Many damaged models run on no inputs: a tenth of the usual time is spent on the search for them.
input_generation._SECONDS = 0.5  # type: ignore[assignment]

os.environ["ONERNN_RAISE"] = "1"  # what a guard would hide is what is looked for
DATA = Path(os.environ.get("ONERNN_FUZZ_DATA", Path(__file__).resolve().parents[1] / "data"))
LIMIT = 30  # seconds of the CPU for a step: counting coverage makes it several times slower
BYTES = 1 << 28  # for what a run makes

Step = tuple[str, Callable[[], object]]


class Kind(NamedTuple):
    """Files of one form: where they lie in tests/data, and how they are damaged."""

    pattern: str
    mutations: tuple[mutations.Mutation, ...]


KINDS = {
    "paddle": Kind("paddle/*/model.pdmodel", (mutations.of_bytes, mutations.of_protobuf)),
    "paddle_params": Kind("paddle/*/model.pdiparams", (mutations.of_bytes,)),
    "pir": Kind("paddle/*/model.json", (mutations.of_bytes, mutations.of_json)),
    "mxnet": Kind("mxnet/*/*-symbol.json", (mutations.of_bytes, mutations.of_json)),
    "mxnet_params": Kind("mxnet/*/*.params", (mutations.of_bytes,)),
    "onnx": Kind("onnx/*/model.onnx", (mutations.of_bytes, mutations.of_protobuf)),
    "torch": Kind("torch/*/model.pt2", (mutations.of_bytes, mutations.of_archive)),
    "torch_weights": Kind(
        "torch/weights/*[!z]", (mutations.of_bytes, mutations.of_archive, mutations.of_archive)
    ),
    "keras": Kind("keras/*/model.keras", (mutations.of_bytes, mutations.of_archive)),
    "keras_h5": Kind("keras/*/model.h5", (mutations.of_bytes,)),
    "npz": Kind("*/*/io.npz", (mutations.of_bytes, mutations.of_zip)),
}


@cache
def seeds(kind: str) -> list[Path]:
    """The real files of a kind, the smallest first."""
    return sorted(DATA.glob(KINDS[kind].pattern), key=lambda file: (file.stat().st_size, file))


class Place:
    """A folder with a model's files, one of them exchanged."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._of: Path | None = None

    def model(self, seed: Path, data: bytes) -> Path:
        """The path of the model in which ``data`` stands for the file ``seed``."""
        here = self.folder / "model"
        if self._of != seed:
            shutil.rmtree(here, ignore_errors=True)
            shutil.copytree(seed.parent, here)
            self._of = seed
        (here / seed.name).write_bytes(data)
        if weights(seed):
            return here / seed.name
        patterns = ("*.onnx", "*-symbol.json", "*.pt2", "*.keras", "*.h5")
        names = [name for pattern in patterns for name in here.glob(pattern)]
        return [*names, here][0]


def weights(file: Path) -> bool:
    """Whether it holds arrays alone, of layers by their names."""
    return any(file.suffix in each.weights and not each.reads(file) for each in ADAPTERS)


def reading(model: Path, out: Path) -> Iterator[Step]:
    """The files alone."""
    recording = (model if model.is_dir() else model.parent) / "io.npz"
    yield "load", lambda: read_stacks(model) if weights(model) else load(model)
    yield "read", lambda: read_arrays(recording)


def steps(model: Path, out: Path) -> Iterator[Step]:
    """What the commands do, one after the other; each stands for itself."""
    recording = (model if model.is_dir() else model.parent) / "io.npz"

    def run() -> None:
        graph = load(model)
        session = Session(graph, threads=1, max_bytes=BYTES)
        session.run(read_inputs(read_arrays(recording), graph.inputs, str(recording)))
        session.explain()

    if weights(model):
        yield "layers", lambda: read_stacks(model)
        return
    yield "fuse", lambda: fuse(load(model))
    yield "run", run
    yield (
        "verify",
        lambda: verify(load(model), recording, threads=1, diagnose=False, max_bytes=BYTES),
    )
    yield "convert", lambda: convert(load(model), out / "out.onnx")
    yield "to_paddle", lambda: convert(load(model), out / "out.pdmodel")
    yield "emit", lambda: write_cpp(load(model), out / "emitted")


class Slow(BaseException):
    """A step took too long; no handler of errors takes it."""


class Finding(NamedTuple):
    """What came out of a step and is no error of ours; ``where``: the innermost frames."""

    step: str
    what: str
    where: tuple[str, ...]


def attempt(path: Iterable[Step]) -> Iterator[Finding | str]:
    """For each step that ended well its name, for each that must not end so what was found."""
    signal.signal(signal.SIGPROF, _slow)
    for step, call in path:
        faulthandler.dump_traceback_later(4 * LIMIT, exit=True)  # a loop in C hears no signal
        signal.setitimer(signal.ITIMER_PROF, LIMIT)
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                call()
            yield step
        except OnernnError:
            pass
        except (Exception, Slow) as error:
            frames = traceback.extract_tb(error.__traceback__)[-6:]
            where = tuple(f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in frames)
            yield Finding(step, f"{type(error).__name__}: {error}"[:200], where)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            faulthandler.cancel_dump_traceback_later()


def _slow(*_: object) -> None:
    raise Slow("too long")
