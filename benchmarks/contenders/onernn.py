"""onernn as a user calls it: float32 arrays from and to NumPy, ragged batches with LoD.

The mode "" is the default backend, whose time counts in comparisons. "onednn" and "kernels" are
single backends. "walk" runs a model's operators one by one from Python.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import numpy as np

from benchmarks.models import Feed, Model, in_turn
from benchmarks.tasks import Array, LeftOut, Numbers, Prepared, Takes, Task

Calls = tuple[Callable[[], Any], Callable[[Any], Array]]
PACKAGES = ("onernn",)
MODES = {
    "": Takes("ragged dense stream training onnx paddle mxnet", "f32 bf16 u8"),
    "onednn": Takes("ragged dense stream training", "f32 bf16 u8"),
    "kernels": Takes("ragged dense stream training", "f32 bf16 u8"),
    "walk": Takes("onnx paddle mxnet", "f32 bf16 u8"),
}


def versions() -> dict[str, str]:
    from onernn.backend.onednn.library import load_library

    library = load_library()
    return {"onernn": version("onernn"), "oneDNN": library.version, "isa": library.effective_isa}


def prepare(task: Task | Model, mode: str) -> Prepared:
    if isinstance(task, Model):
        # With an observer, `Session.run` runs the operators one by one.
        return prepare_whole(task, (lambda *_: None) if mode == "walk" else None)
    from onernn import LibraryError, Ragged, UnsupportedError

    numbers = Numbers(task)
    try:
        layer = prepare_layer(task, numbers, mode)
        call, read = _calls(task, numbers, layer, Ragged)
    except (LibraryError, UnsupportedError) as error:
        if not mode and isinstance(error, LibraryError):
            raise
        raise LeftOut(str(error)) from None
    return Prepared(call, read, layer.kernel)


def prepare_layer(task: Task, numbers: Numbers, mode: str) -> Any:
    """Returns the layer of a task. ``mode``: the backend's name, or "" for the default."""
    from onernn import Cell, RnnSpec, RnnWeights
    from onernn.backend import open_backend

    spec = RnnSpec(
        Cell(task.cell),
        task.input_size,
        task.hidden_size,
        layers=task.layers,
        direction="bidirectional_concat" if task.bidirectional else "left2right",
    )
    weights = [RnnWeights(*numbers.weights(layer)) for layer in range(task.layers)]
    backend = open_backend(*filter(None, [mode]), threads=task.threads)
    return backend.prepare(spec, weights, dtype=task.dtype, strict=True)


def prepare_whole(model: Model, observe: Callable[..., None] | None = None) -> Prepared:
    """Returns a whole model. ``observe``: an argument of `Session.run`."""
    from onernn import Ragged, Session, UnsupportedError

    try:
        session = Session(model.path, model.dtype, model.threads)
    except UnsupportedError as error:
        raise LeftOut(str(error.refusal)) from None

    def run(feed: Feed) -> list[Array]:
        given = {n: Ragged(*v) if isinstance(v, tuple) else v for n, v in feed.items()}
        made = session.run(given, observe).values()
        return [y.data if isinstance(y, Ragged) else y for y in made]

    return in_turn(model, run, session.explain())


def _calls(task: Task, numbers: Numbers, layer: Any, ragged: Any) -> Calls:
    if task.kind == "training":
        return _training(task, numbers, layer, ragged)
    if task.kind == "ragged":
        words = ragged.from_lengths(numbers.words, task.lengths)
        return lambda: layer.run(words)[0], lambda y: y.data
    x = numbers.padded
    if task.kind == "dense":
        return lambda: layer.run(x)[0], numbers.unpadded
    steps = [x[t : t + 1] for t in range(task.time)]

    def stream() -> list[Array]:
        state, ys = None, []
        for step in steps:
            y, state = layer.run(step, state)
            ys.append(y)
        return ys

    return stream, lambda ys: numbers.unpadded(np.concatenate(ys))


def _training(task: Task, numbers: Numbers, layer: Any, ragged: Any) -> Calls:
    x, dy, words = numbers.padded, numbers.padded_dy, numbers.unpadded
    if task.ragged:
        x, dy = (ragged.from_lengths(a, task.lengths) for a in (numbers.words, numbers["dy"]))
        words = lambda dx: dx.data  # noqa: E731
    *_, tape = layer.run_training(x)
    if tape.why:
        raise LeftOut(tape.why)

    def call() -> Any:
        *_, tape = layer.run_training(x)
        return layer.backward(tape, dy)

    def read(gradients: Any) -> Array:
        named = {"words": words(gradients.x)}
        for k, weights in enumerate(gradients.layers):
            named |= {
                f"layer{k}": weights.layer,
                f"iter{k}": weights.iter,
                f"bias{k}": weights.bias,
            }
        return numbers.slopes(named)

    return call, read
