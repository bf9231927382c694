"""MXNet: its operator RNN over padded batches; on a CPU, RNN ignores sequence lengths.

Whole models run as a SymbolBlock.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.models import Feed, Model, in_turn
from benchmarks.tasks import Array, LeftOut, Numbers, Prepared, Takes, Task

PACKAGES = ("mxnet",)
MODES = {"": Takes("ragged dense stream mxnet", "f32", "lbr_gru lstm")}
ORDER = {"lbr_gru": (1, 0, 2), "lstm": (0, 1, 2, 3)}  # r z n; i f g o


def versions() -> dict[str, str]:
    import mxnet

    return {"mxnet": mxnet.__version__}


def prepare(task: Task | Model, mode: str) -> Prepared:
    import mxnet

    if isinstance(task, Model):
        return _whole(mxnet, task)
    if task.kind == "ragged" and task.bidirectional:
        raise LeftOut("without lengths the backward direction would start in the padding")
    numbers = Numbers(task)
    parts = [rows for _, _, rows in numbers.all_rows(ORDER[task.cell])]
    flat = [a.reshape(-1) for w, u, _, _ in parts for a in (w, u)]
    flat += [a for _, _, b_x, b_h in parts for a in (b_x, b_h)]
    parameters = mxnet.nd.array(np.concatenate(flat))
    shape = (task.layers * task.directions, task.batch, task.hidden_size)
    zeros = [mxnet.nd.zeros(shape) for _ in range(1 + (task.cell == "lstm"))]

    def rnn(x: Any, states: list[Any]) -> list[Any]:
        result: list[Any] = mxnet.nd.RNN(
            x,
            parameters,
            *states,
            state_size=task.hidden_size,
            num_layers=task.layers,
            bidirectional=task.bidirectional,
            mode="lstm" if task.cell == "lstm" else "gru",
            state_outputs=True,
        )
        return result

    x = mxnet.nd.array(numbers.padded)
    steps = [x[t : t + 1] for t in range(task.time)] if task.kind == "stream" else [x]

    def call() -> Any:
        states, ys = zeros, []
        for step in steps:
            y, *states = rnn(step, states)
            ys.append(y)
        for y in ys:
            y.wait_to_read()
        return ys

    return Prepared(call, lambda ys: numbers.unpadded(np.concatenate([y.asnumpy() for y in ys])))


def _whole(mxnet: Any, model: Model) -> Prepared:
    (symbol,) = Path(model.path).glob("*-symbol.json")
    (parameters,) = Path(model.path).glob("*.params")
    block = mxnet.gluon.SymbolBlock.imports(str(symbol), list(model.inputs), str(parameters))

    def run(feed: Feed) -> list[Array]:
        made = block(*(mxnet.nd.array(array) for array in feed.values()))
        return [y.asnumpy() for y in (made if isinstance(made, list | tuple) else [made])]

    return in_turn(model, run)
