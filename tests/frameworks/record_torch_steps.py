"""Steps of PyTorch's cells as its older exporter writes them, with what PyTorch computes.

``PYTHONPATH=tests python -m tests.frameworks.record_torch_steps`` records them anew under
tests/data/steps; it needs torch and onnx.
"""

from __future__ import annotations

import io
import warnings
from typing import Any

import numpy as np
import torch
from tests.frameworks.recording import record_frames
from torch import nn

T, N, WIDTH, H = 5, 3, 3, 4
RNG = np.random.default_rng(0)


class Step(nn.Module):
    """One step of a cell."""

    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Any, h: Any, c: Any = None) -> Any:
        return self.cell(x, h if c is None else (h, c))


class Stack(nn.Module):
    """Two plain cells between linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(WIDTH, H), nn.Linear(H, 2)
        self.one, self.two = nn.RNNCell(H, H), nn.RNNCell(H, H, nonlinearity="relu")

    def forward(self, x: Any, h: Any, g: Any) -> Any:
        h = self.one(torch.relu(self.enter(x)), h)
        g = self.two(h, g)
        return h, g, self.leave(g)


class Policy(nn.Module):
    """An agent whose state starts anew where ``reset`` is 1."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(WIDTH, H), nn.Linear(H, 2)
        self.cell = nn.LSTMCell(H, H)

    def forward(self, x: Any, reset: Any, h: Any, c: Any) -> Any:
        h, c = h * (1 - reset), c * (1 - reset)
        h, c = self.cell(torch.relu(self.enter(x)), (h, c))
        return h, c, self.leave(h)


CELLS = {
    "torch_rnn": (lambda: Step(nn.RNNCell(WIDTH, H)), ["h"]),
    "torch_gru": (lambda: Step(nn.GRUCell(WIDTH, H)), ["h"]),
    "torch_lstm": (lambda: Step(nn.LSTMCell(H, H)), ["h", "c"]),
    "torch_stack": (Stack, ["h", "g"]),
    "torch_policy": (Policy, ["h", "c"]),
}


def record(name: str, module: nn.Module, names: list[str]) -> None:
    width = H if name == "torch_lstm" else WIDTH
    frames = {"x": RNG.uniform(-1, 1, (T, N, width)).astype(np.float32)}
    if name == "torch_policy":
        frames["reset"] = (RNG.random((T, N, 1)) < 0.3).astype(np.float32)
    states = {each: RNG.uniform(-1, 1, (N, H)).astype(np.float32) for each in names}
    outputs = [f"{each}N" for each in names]
    outputs += ["y"] * (name in ("torch_stack", "torch_policy"))
    given = {**{each: a[0] for each, a in frames.items()}, **states}
    file = io.BytesIO()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module,
            tuple(map(torch.tensor, given.values())),
            file,
            input_names=[*given],
            output_names=outputs,
            dynamic_axes={each: {0: "N"} for each in (*given, *outputs)},
            opset_version=17,
            dynamo=False,
        )

    def run(**inputs: np.ndarray) -> dict[str, np.ndarray]:
        with torch.no_grad():
            made = module(*(torch.tensor(inputs[each]) for each in given))
        whole = made if isinstance(made, tuple) else (made,)
        return {each: value.numpy() for each, value in zip(outputs, whole, strict=True)}

    record_frames(name, file.getvalue(), run, frames, states)


if __name__ == "__main__":
    for key, (make, states_of) in CELLS.items():
        torch.manual_seed(0)
        record(key, make().eval(), states_of)
