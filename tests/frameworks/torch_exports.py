"""Recurrent models as PyTorch's two exporters write them.

``python -m tests.frameworks.torch_exports`` records them anew under tests/data/onnx; it needs
torch, onnx and onnxscript.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import onnx
import torch
from tests.frameworks.recording import record_onnx
from tests.frameworks.torch_programs import module
from torch import nn

from onernn import recording

torch.manual_seed(1)
X, H, C = torch.randn(4, 2, 6), torch.randn(2, 5), torch.randn(2, 5)


class Scripted(nn.Module):
    """A loop over a cell, which the exporter keeps a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(6, 5)

    def forward(self, x, h, c):
        state, out = (h, c), []
        for t in range(x.size(0)):
            state = self.cell(x[t], state)
            out.append(state[0])
        return torch.stack(out), state[0], state[1]


@module(
    embedding=lambda: nn.Embedding(20, 6),
    rnn=lambda: nn.LSTM(6, 5, num_layers=2, bidirectional=True, batch_first=True),
    linear=lambda: nn.Linear(10, 4),
)
def tagger(self, ids):
    y, (h, _) = self.rnn(self.embedding(ids))
    return torch.log_softmax(self.linear(y), -1), h


@module(rnn=lambda: nn.GRU(6, 5, bidirectional=True))
def packed_gru(self, x, lengths):
    y, h = self.rnn(nn.utils.rnn.pack_padded_sequence(x, lengths))
    return nn.utils.rnn.pad_packed_sequence(y)[0], h


@module(rnn=lambda: nn.LSTM(6, 5, bidirectional=True, batch_first=True))
def unsorted_lstm(self, x, lengths):
    """Sentences in any order: the packing sorts them, by TopK and ScatterElements."""
    packed = nn.utils.rnn.pack_padded_sequence(x, lengths, True, enforce_sorted=False)
    y, (h, c) = self.rnn(packed)
    return nn.utils.rnn.pad_packed_sequence(y, batch_first=True)[0], h, c


class Cell(nn.Module):
    """An LSTM's step, as PyTorch's benchmarks of custom LSTMs write it."""

    def __init__(self) -> None:
        super().__init__()
        shapes = (20, 6), (20, 5), (20,), (20,)
        self.w, self.u, self.b, self.d = (nn.Parameter(torch.randn(each) / 3) for each in shapes)

    def forward(self, x, state: tuple[torch.Tensor, torch.Tensor]):
        h, c = state
        gates = torch.mm(x, self.w.t()) + self.b + torch.mm(h, self.u.t()) + self.d
        i, f, g, o = gates.chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        return h, (h, c)


class Custom(nn.Module):
    """A loop over what x.unbind gives, which collects h."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = Cell()

    def forward(self, x, h, c):
        steps, state = x.unbind(0), (h, c)
        out = torch.jit.annotate(list[torch.Tensor], [])
        for t in range(len(steps)):
            h, state = self.cell(steps[t], state)
            out += [h]
        return torch.stack(out), state[0], state[1]


class Cells(nn.Module):
    """A loop that collects h and c, and puts h together along time."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(6, 5)

    def forward(self, x, h, c):
        hidden, cells = [], []
        for t in range(x.size(0)):
            h, c = self.cell(x[t], (h, c))
            hidden.append(h.unsqueeze(1))
            cells.append(c)
        return torch.cat(hidden, 1), torch.stack(cells)


IDS = torch.randint(0, 20, (3, 7))
EXPORTS: dict[str, tuple[Any, tuple[Any, ...], bool | tuple[int, ...]]] = {
    "torch_scripted_lstm": (lambda: torch.jit.script(Scripted()), (X, H, C), False),
    "torch_tagger": (lambda: tagger().eval(), (IDS,), False),
    "torch_tagger_dynamo": (lambda: tagger().eval(), (IDS,), True),
    "torch_packed_gru": (lambda: packed_gru().eval(), (X, torch.tensor([4, 2])), False),
    "torch_unsorted_lstm": (
        lambda: unsorted_lstm().eval(),
        (X.transpose(0, 1).contiguous(), torch.tensor([2, 4])),
        False,
    ),
    "torch_custom_lstm": (lambda: torch.jit.script(Custom()), (X, H, C), False),
    "torch_collected_cells": (lambda: torch.jit.script(Cells()), (X, H, C), False),
    "torch_relu_rnn": (lambda: nn.RNN(6, 5, 2, nonlinearity="relu").eval(), (X,), False),
    "torch_gru_dynamo": (lambda: nn.GRU(6, 5, bidirectional=True).eval(), (X,), True),
    "torch_gru_dynamic": (lambda: nn.GRU(6, 5, bidirectional=True).eval(), (X,), (1,)),
}
"""Module, inputs, and whether the newer exporter writes it.

True, or its dynamic axes of the first input.
"""


def export(name: str, folder: Path) -> None:
    """Writes ``model.onnx`` and the recording ``io.npz`` into a folder."""
    make, inputs, dynamo = EXPORTS[name]
    torch.manual_seed(0)
    model = make()
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"in{k}" for k in range(len(inputs))]
    options: dict[str, Any] = {"opset_version": 17, "dynamic_axes": {"in0": [0, 1]}}
    if dynamo:
        sizes = dict.fromkeys(dynamo, torch.export.Dim.DYNAMIC) if dynamo is not True else None
        options = {"dynamic_shapes": (sizes,)} if sizes else {}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        outputs = model(*inputs)
        torch.onnx.export(
            model, inputs, folder / "model.onnx", input_names=names, dynamo=bool(dynamo), **options
        )
    _strip(folder / "model.onnx")
    flat: list[Any] = []
    for each in outputs:
        flat += each if isinstance(each, tuple) else [each]
    recording.save(folder / "io.npz", dict(zip(names, inputs, strict=True)), flat)


def _strip(file: Path) -> None:
    """Without the paths of the machine that exported it."""
    model = onnx.load(file, load_external_data=False)
    graphs = [model.graph]
    for graph in graphs:
        del graph.metadata_props[:]
        for each in (*graph.node, *graph.value_info, *graph.input, *graph.output):
            del each.metadata_props[:]
            each.doc_string = ""
        inside = (attribute for node in graph.node for attribute in node.attribute)
        graphs += [attribute.g for attribute in inside if attribute.HasField("g")]
    del model.metadata_props[:]
    onnx.save(model, file)


if __name__ == "__main__":
    record_onnx(EXPORTS, export)
