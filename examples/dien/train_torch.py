"""Trains DIEN's network in PyTorch, for ONNX: ``python examples/dien/train_torch.py``.

The cell is that of DIEN's code (VecAttGRUCell): u = (1 - a) u, h = u h' + (1 - u) c. Behind the
end of a history the state stays. The loop over steps is exported as one. What comes out lies in
``onnx/``.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from clicks import ITEMS, clicks
from recording import record
from torch import nn

HERE = Path(__file__).resolve().parent / "onnx"
WIDTH, UNITS, BATCH, ROUNDS = 8, 16, 128, 1500


class AttentionCell(nn.Module):
    def __init__(self, inputs: int, units: int) -> None:
        super().__init__()
        self.gates_of_x, self.gates_of_h = nn.Linear(inputs, 2 * units), nn.Linear(units, 2 * units)
        self.new_of_x, self.new_of_h = nn.Linear(inputs, units), nn.Linear(units, units)

    def forward(self, x: torch.Tensor, h: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        r, u = torch.sigmoid(self.gates_of_x(x) + self.gates_of_h(h)).chunk(2, 1)
        c = torch.tanh(self.new_of_x(x) + self.new_of_h(r * h))
        u = (1.0 - a) * u
        return u * h + (1.0 - u) * c


class Evolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = AttentionCell(UNITS, UNITS)

    def forward(self, x: torch.Tensor, a: torch.Tensor, running: torch.Tensor) -> torch.Tensor:
        """x (T, N, UNITS), a and running (T, N) -> the last state."""
        h = torch.zeros(x.size(1), x.size(2))
        for t in range(x.size(0)):
            h = torch.where(running[t].unsqueeze(1), self.cell(x[t], h, a[t].unsqueeze(1)), h)
        return h


class Dien(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(ITEMS, WIDTH)
        self.interests = nn.GRU(WIDTH, UNITS)
        self.match = nn.Linear(UNITS, WIDTH, bias=False)
        self.evolution = Evolution()
        self.hidden, self.score = nn.Linear(UNITS + WIDTH, UNITS), nn.Linear(UNITS, 1)

    def forward(
        self, history: torch.Tensor, lengths: torch.Tensor, offer: torch.Tensor
    ) -> torch.Tensor:
        history = history.t()
        wanted = self.items(offer)
        interests, _ = self.interests(self.items(history))
        running = torch.arange(history.size(0)).unsqueeze(1) < lengths.unsqueeze(0)
        alike = (self.match(interests) * wanted.unsqueeze(0)).sum(-1)
        a = torch.softmax(alike.masked_fill(~running, -1e9), 0)
        both = torch.cat([self.evolution(interests, a, running), wanted], 1)
        return torch.sigmoid(self.score(torch.relu(self.hidden(both)))).squeeze(1)


def main() -> None:
    torch.manual_seed(3)
    torch.set_num_threads(1)
    net = torch.jit.script(Dien())
    adam = torch.optim.Adam(net.parameters(), 1e-2)
    for step in range(ROUNDS):
        batch, taken = clicks(BATCH, 1000 + step)
        got = net(*(torch.from_numpy(array) for array in batch.values()))
        loss = nn.functional.binary_cross_entropy(got, torch.from_numpy(taken))
        adam.zero_grad()
        loss.backward()
        adam.step()
        if step % 250 == 0:
            print(f"step {step} of {ROUNDS}: loss {loss.item():.3f}", flush=True)
    net.eval()
    HERE.mkdir(exist_ok=True)
    names = ["history", "lengths", "offer"]
    few, _ = clicks(5, 2)
    torch.onnx.export(
        net,
        tuple(torch.from_numpy(array) for array in few.values()),
        str(HERE / "model.onnx"),
        input_names=names,
        output_names=["taken"],
        dynamic_axes={"history": {0: "N", 1: "T"}, "lengths": {0: "N"}, "offer": {0: "N"}},
        opset_version=17,
        dynamo=False,
    )

    def run(*arrays: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return net(*map(torch.from_numpy, arrays)).numpy()

    record(HERE, f"torch {torch.__version__}", lambda batch: [*batch.values()], names, run)


if __name__ == "__main__":
    main()
