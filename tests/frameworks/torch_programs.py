"""Models around recurrent layers, exported by torch.export, and inputs of any sizes for them.

``python -m tests.frameworks.torch_programs`` records some anew under tests/data/torch: a .pt2 that
was exported for 3 sentences of 7 steps, and outputs that PyTorch computed of other sizes where the
program holds none.
"""

from __future__ import annotations

import io
import json
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onernn import recording

DATA = Path(__file__).parents[1] / "data" / "torch"
STEPS, BATCH = 7, 3
"""The sizes of the example with which everything is exported."""
Inputs = Callable[[int, int], tuple[Tensor, ...]]

MODELS: dict[str, tuple[Callable[[], nn.Module], Inputs]] = {}
TIED: dict[str, set[str]] = {}
"""Which of the sizes, "N" and "T", a program is tied to, or may be: it holds numbers like them."""


def sentences(n: int, t: int) -> tuple[Tensor, ...]:
    return (torch.randn(n, t, 6),)


def steps_first(n: int, t: int) -> tuple[Tensor, ...]:
    return (torch.randn(t, n, 6),)


def words(n: int, t: int) -> tuple[Tensor, ...]:
    return (torch.randint(0, 20, (n, t)),)


def gru() -> nn.GRU:
    return nn.GRU(6, 8, batch_first=True)


def module(**parts: Callable[[], Any]) -> Callable[[Callable[..., Any]], type[nn.Module]]:
    """Of a forward function of tensors, a module with these parts."""

    def init(self: nn.Module) -> None:
        nn.Module.__init__(self)
        for part, make in parts.items():
            setattr(self, part, make())

    return lambda forward: type(
        forward.__name__, (nn.Module,), {"__init__": init, "forward": forward}
    )


def model(
    inputs: Inputs, tied: str = "", **parts: Callable[[], Any]
) -> Callable[[Callable[..., Any]], type[nn.Module]]:
    """Of a forward function, a model with these parts."""

    def register(forward: Callable[..., Any]) -> type[nn.Module]:
        name, kind = forward.__name__, module(**parts)(forward)
        MODELS[name], TIED[name] = (kind, inputs), {*tied}
        return kind

    return register


@model(
    words,
    words=lambda: nn.Embedding(20, 6),
    layer=lambda: nn.LSTM(6, 5, 2, batch_first=True, bidirectional=True, dropout=0.3),
    tags=lambda: nn.Linear(10, 4),
)
def tagger(self, x):
    return F.log_softmax(self.tags(self.layer(self.words(x))[0]), -1)


@model(sentences, layer=lambda: nn.GRU(6, 5, batch_first=True), out=lambda: nn.Linear(5, 3))
def last(self, x):
    y, h = self.layer(x)
    return self.out(y[:, -1]), 1 - torch.sigmoid(self.out(h[-1]))


@model(steps_first, layer=lambda: nn.LSTM(6, 8), out=lambda: nn.Linear(8, 4))
def rows(self, x):
    """Steps and sentences as one axis, and back."""

    y, _ = self.layer(x)
    t, n, width = y.shape
    return self.out(y.reshape(t * n, width)).view(t, n, 4).softmax(-1).permute(1, 0, 2)


@model(
    sentences,
    layer=lambda: nn.RNN(6, 8, batch_first=True, nonlinearity="relu"),
    norm=lambda: nn.LayerNorm(8),
)
def pooled(self, x):
    y = self.norm(self.layer(x)[0])
    return torch.cat([y.mean(1), y.max(1)[0], y.amax(dim=1), y.sum(1) * 0.3], -1)


@model(sentences, tied="T", layer=gru)
def mean_over_its_length(self, x):
    return self.layer(x)[0].sum(1) / x.shape[1]


@model(sentences, tied="NT", layer=gru)  # half of 7 steps is 3, as many as there are sentences
def first_half(self, x):
    return self.layer(x[:, : x.shape[1] // 2])[0]


@model(sentences, layer=lambda: nn.LSTM(6, 8, 2, batch_first=True))
def own_states(self, x):
    h = torch.zeros(2, x.size(0), 8)
    y, (h, c) = self.layer(x, (h, torch.zeros(2, x.size(0), 8).to(x.device)))
    return y, h, c


@model(
    lambda n, t: (torch.randn(t, n, 6), torch.randn(2, n, 3), torch.randn(2, n, 8)),
    layer=lambda: nn.LSTM(6, 8, bidirectional=True, proj_size=3),
)
def projected(self, x, h, c):
    y, (h, c) = self.layer(x, (h, c))
    return y, h, c


@model(
    lambda n, t: (torch.randn(n, 1, 12, 4 * t),),
    columns=lambda: nn.Sequential(
        *(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(True), nn.MaxPool2d(2)),
        *(nn.Conv2d(4, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d((2, 1))),
    ),
    layer=lambda: nn.LSTM(18, 7, bidirectional=True),
    out=lambda: nn.Linear(14, 5),
)
def textline(self, x):
    """Convolutions over an image of a line, and an LSTM along it."""

    y = self.columns(x)
    n, c, h, w = y.size()
    y, _ = self.layer(y.view(n, c * h, w).permute(2, 0, 1))
    t, n, width = y.size()
    return self.out(y.view(t * n, width)).view(t, n, -1)


@model(
    sentences,
    layer=lambda: nn.GRU(6, 8, batch_first=True, bidirectional=True),
    score=lambda: nn.Linear(16, 1),
)
def attention(self, x):
    y, _ = self.layer(x)
    weights = F.softmax(self.score(y).squeeze(-1), dim=1)
    return torch.bmm(weights.unsqueeze(1), y).squeeze(1)


@model(
    sentences,
    layer=gru,
    heads=lambda: nn.MultiheadAttention(8, 2, batch_first=True),
)
def heads(self, x):
    y, _ = self.layer(x)
    return self.heads(y, y, y, need_weights=False)[0]


@model(
    sentences, tied="NT", cell=lambda: nn.LSTMCell(6, 8)
)  # the program takes steps 1, 2, ... up to 6 by number
def cells(self, x):
    h = c = x.new_zeros(x.size(0), 8)
    outputs = []
    for t in range(x.size(1)):
        h, c = self.cell(x[:, t], (h, c))
        outputs.append(h)
    return torch.stack(outputs, 1)


@model(
    sentences,
    convolution=lambda: nn.Conv1d(6, 9, 3, padding="same"),
    norm=lambda: nn.BatchNorm1d(9),
    layer=lambda: nn.GRU(9, 4, batch_first=True),
)
def convolved(self, x):
    y = F.gelu(self.norm(self.convolution(x.transpose(1, 2)))).transpose(1, 2)
    return self.layer(y)[0]


@model(
    sentences,
    tied="T",
    places=lambda: nn.Embedding(50, 6),
    layer=lambda: nn.GRU(6, 4, batch_first=True),
)
def positions(self, x):
    return self.layer(x + self.places(torch.arange(x.shape[1])))[0]


@model(
    sentences,
    tied="T",
    layer=lambda: nn.GRU(6, 4, batch_first=True),
    out=lambda: nn.Linear(4 * STEPS, 2),
)
def flattened(self, x):
    return self.out(self.layer(x)[0].reshape(x.size(0), -1))


@model(
    lambda n, t: (*words(n, t), *words(n, t + 2)),
    words=lambda: nn.Embedding(20, 6, padding_idx=0),
    encoder=gru,
    decoder=gru,
    out=lambda: nn.Linear(8, 20),
)
def translator(self, x, y):
    _, h = self.encoder(self.words(x))
    outputs, h = self.decoder(self.words(y), h)
    return self.out(outputs).argmax(-1), h


@model(sentences, layer=gru)
def masked(self, x):
    y, _ = self.layer(x)
    mask = x.sum(-1) > 0
    y = y.masked_fill(~mask.unsqueeze(-1), 0.0)
    return y.sum(1) / mask.sum(1, keepdim=True).clamp(min=1), torch.where(mask, 1.0, -1.0)


@model(sentences, layer=lambda: gru().double())
def wide(self, x):
    return self.layer(x.double())[0]


@model(sentences, layer=lambda: nn.RNN(6, 8, 2, bias=False, bidirectional=True))
def plain(self, x):
    y, h = self.layer(x.transpose(0, 1).contiguous())
    h = h.view(2, 2, -1, 8)
    return torch.cat((h[-1, 0], h[-1, 1]), dim=1), y[0], y[-1]


@model(
    sentences,
    tied="N",
    layer=gru,
    weight=lambda: nn.Parameter(torch.randn(1, 1, 8)),
)  # 3, as many as there are sentences, is a divisor
def parts(self, x):
    y, _ = self.layer(x)
    (one, other), (short, long) = y.chunk(2, -1), torch.split(y, [3, 5], dim=2)
    gated = one * torch.sigmoid(other)
    spread = short.std(-1), long.var(2, unbiased=False)
    return gated, *spread, x.flip(1), (y * self.weight).sum(-1) ** 2, -y + 1 - y / 3.0


@model(
    sentences,
    tied="NT",
    layer=gru,
    first=lambda: nn.Parameter(torch.randn(1, 1, 8)),
)  # nobody can tell an axis that is 7 long from one of 7 steps
def expanded(self, x):
    y, h = self.layer(x, self.first.expand(-1, x.size(0), -1).contiguous())
    return y + h[-1].unsqueeze(1).expand(-1, x.size(1), -1)


@model(sentences, tied="T", layer=gru)
def length_as_tensor(self, x):
    return self.layer(x)[0].sum(1) / torch.tensor(x.shape[1])


@model(
    sentences,
    layer=gru,
    norm=lambda: nn.GroupNorm(2, 8),
    plain_norm=lambda: nn.GroupNorm(2, 8, affine=False),
    back=lambda: nn.ConvTranspose1d(8, 4, 3, stride=2, padding=1, output_padding=1),
)
def norms_and_wider_steps(self, x):
    y = self.layer(x)[0].swapaxes(1, 2)
    wider = self.back(self.plain_norm(self.norm(y)))
    return torch.swapdims(wider, 1, 2), y.moveaxis(0, 1), torch.movedim(y, (0, 1), (2, 0))


@model(
    lambda n, t: (torch.randn(n, 2, 4, 2 * t),),
    tied="T",
    layer=lambda: nn.GRU(2, 4, batch_first=True),
)
def pooled_to_sizes(self, x):
    """The exporter writes the None of (None, 1) as the number that it was."""
    across = F.adaptive_avg_pool2d(x.swapdims(2, 3), (None, 1)).squeeze(-1)
    y, _ = self.layer(across.transpose(1, 2))
    windows = F.adaptive_avg_pool2d(x, (3, 5)), F.adaptive_max_pool2d(x, (3, 1))
    return y, *windows, F.adaptive_avg_pool1d(x[:, 0], 6), F.adaptive_max_pool1d(x[:, 1], 3)


@model(sentences, layer=gru)
def logarithms(self, x):
    """Of tiny, large and equal numbers; of sums whose parts differ by more than float32 holds."""
    p, tiny = x.abs(), x**15
    small = torch.special.log1p(tiny), torch.expm1(tiny), torch.log1p(p * 9999), torch.expm1(x)
    sums = torch.logaddexp(60 * x, p), torch.logaddexp(x, x), torch.logcumsumexp(60 * x, 1)
    return *small, *sums, F.logsigmoid(60 * x), torch.log10(p), torch.log2(p), torch.exp2(x)


@model(sentences)
def shrunk(self, x):
    shrunk = F.hardshrink(x, 0.3), F.softshrink(x, 0.3), F.threshold(x, 0.3, -9.5)
    smooth = F.celu(x, 1.3), torch.tan(x / 3.3), torch.arctan(x), F.mish(x)
    return *shrunk, *smooth, torch.trunc(9.5 * x), torch.isnan(x)


@model(sentences, layer=gru)
def spreads(self, x):
    y, _ = self.layer(x)
    both = *torch.var_mean(y, -1, correction=0.3), *torch.std_mean(y, 2, keepdim=True)
    return y.var(2, correction=0.3), y.std((1, 2), correction=0.0), *both, y.var(-1, correction=9.5)


@model(sentences, layer=gru)
def overwritten_by_masks(self, x):
    """Values for all places, one for each of the last axis, and one for each place in order."""
    y, _ = self.layer(x)
    mask = x.sum(-1) > 0
    whole, rows, listed = y * 1, y.clone(), y + 0.3
    whole[y > 0.1] = 1.3
    rows[mask] = y[0, 0]
    listed[mask] = -y[mask]
    rows += 0.7
    rows[~mask] -= whole[~mask]
    return whole, rows, listed, torch.relu_(whole * 3.3)


@model(sentences, layer=gru)
def overwritten_in_parts(self, x):
    """Only after exported.run_decompositions({}), which writes parts as new tensors."""
    y, _ = self.layer(x)
    whole, words = y * 1, x.clone()
    whole[:, 0] = 1.3
    whole[:, -1] *= 0.7
    words[..., 1:5] = y[..., :4]
    words[..., -2:] = 0.0
    words[:, :-1, 0] += whole[:, 1:, 0]
    return whole, words


DECOMPOSED = {"overwritten_in_parts"}
"""Programs that are saved after run_decompositions({})."""


@model(sentences, tied="N", layer=gru)  # 2 and 4 may come from 3 sentences
def overwritten_by_places(self, x):
    y, _ = self.layer(x)
    one, some = y * 1, torch.tensor([1, 1, 4])
    one[:, :, torch.tensor([5, 0])] = x[:, :, :2]
    turned = y.movedim(2, 0) + 0.3
    return one, turned.index_put((some,), torch.tensor(0.1), accumulate=True)


@model(sentences, layer=gru, norm=lambda: nn.RMSNorm(8))
def sorted_and_turned(self, x):
    """Operators whose results depend on the sizes of the tensors that they read."""
    y = self.norm(self.layer(x)[0])
    attended = F.scaled_dot_product_attention(y, y, y, is_causal=True)
    (ordered, places), (highest, since) = y.sort(1, descending=True), y.cummax(1)
    back = torch.take_along_dim(y, places[..., :1], 1), x.roll((-1, 1), (1, 2))
    often = y.repeat_interleave(5, 1), x.cumprod(1), torch.fft.rfft(x, dim=1).abs()
    limits = torch.searchsorted(highest.mT.contiguous(), ordered.mT.contiguous(), right=True)
    found = (x > 1).any(1), torch.isfinite(x / x.relu()).all(-1), x.count_nonzero(1)
    return attended, ordered, highest, since, *back, *often, limits, *found, F.normalize(y, dim=1)


@model(lambda n, t: (torch.randn(n, t, 6), torch.randint(0, t, (n, 2))), tied="N", layer=gru)
def picked_and_scattered(self, x, places):
    """Index tensors of several axes, next to each other or not, that are broadcast."""
    y, rows = self.layer(x)[0], torch.arange(x.shape[0])[:, None]
    picked = y[rows, places], y[rows, places, 5], y[rows, :, places % 5]
    put = y.index_put((rows, places), x[0, 0, :1]), y.index_put((rows, places), y[:, :1])
    sums = x[..., 0].scatter_add(1, places, x[:, 0, :2]), y.scatter(1, places[..., None], 0.3)
    return *picked, *put, *sums, y.index_add(2, torch.tensor([5, 0, 5]), y[..., :3], alpha=0.3)


def signals(n: int, t: int) -> tuple[Tensor, ...]:
    return (torch.randn(n, 16 * t),)


WINDOW: dict[str, Callable[[], Any]] = {
    "window": lambda: nn.Buffer(torch.hann_window(12)),
}


@model(signals, tied="T", layer=lambda: nn.GRU(9, 9, batch_first=True), **WINDOW)
def spectral_mask(self, x):
    """A mask over a spectrum, as models that clean speech compute it; they keep the length."""
    spectrum = torch.stft(x, 16, 5, 12, self.window, return_complex=True)
    mask = torch.sigmoid(self.layer(spectrum.abs().transpose(1, 2))[0]).transpose(1, 2)
    parts = torch.view_as_real(spectrum) * mask.unsqueeze(-1)
    masked = torch.complex(spectrum.real * mask, spectrum.imag * mask)
    cleaned = torch.istft(masked, 16, 5, 12, self.window, length=x.shape[1])
    turned = mask.mean(1, keepdim=True) * (spectrum * 0.7) * masked
    parts = parts - torch.view_as_real(turned)
    return parts, cleaned, torch.istft(torch.view_as_complex(parts), 16, 5, 12, self.window)


@model(signals, tied="N", window=lambda: nn.Buffer(torch.hamming_window(10)))  # hops of 3
def spectra(self, x):
    """Frames with no padding around the signal, all frequencies, and a window that is computed."""
    plain = torch.stft(x, 10, 3, window=self.window, center=False, return_complex=True)
    scaled = torch.stft(
        *(x, 10, 3, 8, torch.blackman_window(8)),
        **{"normalized": True, "onesided": False, "return_complex": True},
    )
    back = torch.istft(plain, 10, 3, window=self.window, center=False)
    return plain.abs(), torch.view_as_real(torch.conj_physical(scaled)), back


def built(name: str) -> tuple[nn.Module, Inputs]:
    kind, inputs = MODELS[name]
    torch.manual_seed(0)
    return kind().eval(), inputs


def program(name: str, *, dynamic: bool = False) -> Any:
    """The model exported for 3 sentences of 7 steps; ``dynamic``: of any number of sentences."""
    made, inputs = built(name)
    example, other = inputs(BATCH, STEPS), inputs(BATCH + 1, STEPS)
    auto = torch.export.Dim.AUTO
    shapes = tuple(
        {
            at: auto
            for at, pair in enumerate(zip(a.shape, b.shape, strict=True))
            if pair[0] != pair[1]
        }
        for a, b in zip(example, other, strict=True)
    )
    exported = torch.export.export(made, example, dynamic_shapes=shapes if dynamic else None)
    return exported.run_decompositions({}) if name in DECOMPOSED else exported


def flat(outputs: Any) -> list[np.ndarray[Any, Any]]:
    if isinstance(outputs, Tensor):
        return [outputs.detach().numpy()]
    return [array for each in outputs for array in flat(each)]


def save_as_2_5(exported: Any, file: Path) -> None:
    """As torch.export.save did from PyTorch 2.5 to 2.7: torch/export/__init__.py there."""
    from torch._export.serde.serialize import serialize

    parts = serialize(exported)
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("version", "8.8")
        archive.writestr("serialized_exported_program.json", parts.exported_program)
        archive.writestr("serialized_state_dict.pt", parts.state_dict)
        archive.writestr("serialized_constants.pt", parts.constants)
        archive.writestr("serialized_example_inputs.pt", parts.example_inputs)


def save_as_2_8(exported: Any, file: Path) -> None:
    """As torch.export.save did in PyTorch 2.8: tensors in pickles, beside models/model.json."""
    from torch._export.serde.serialize import serialize

    new, parts = io.BytesIO(), serialize(exported)
    torch.export.save(exported, new)
    with zipfile.ZipFile(new) as read, zipfile.ZipFile(file, "w") as archive:
        for info in read.infolist():
            if "/weights/" not in info.filename and "/constants/" not in info.filename:
                archive.writestr(info.filename, read.read(info))
        root = read.namelist()[0].partition("/")[0]
        archive.writestr(f"{root}/data/weights/model.pt", parts.state_dict)
        archive.writestr(f"{root}/data/constants/model.pt", parts.constants)


def save_safetensors(arrays: dict[str, np.ndarray[Any, Any]], file: Path) -> None:
    """As huggingface/safetensors describes its format: README.md, "Format"."""
    header, body = {}, b""
    kinds = {"float32": "F32", "float16": "F16"}
    for name, array in arrays.items():
        data = array.tobytes()
        places = [len(body), len(body) + len(data)]
        dtype = kinds[array.dtype.name]
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": places}
        body += data
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + body)


def record(folder: Path, name: str, save: Callable[[Any, Path], None], **options: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    exported = program(name, **options)
    for node in exported.graph.nodes:  # paths of this machine
        node.meta.pop("stack_trace", None)
        node.meta.pop("nn_module_stack", None)
    save(exported, folder / "model.pt2")
    made, inputs = built(name)
    sizes = [BATCH if "N" in TIED[name] else 2, STEPS if "T" in TIED[name] else 9]
    torch.manual_seed(1)
    values = inputs(*sizes)
    names = exported.graph_signature.user_inputs
    feed = dict(zip(names, values, strict=True))
    recording.save(folder / "io.npz", feed, flat(made(*values)))


@model(
    sentences,
    over=lambda: nn.utils.weight_norm(nn.Conv1d(6, 4, 3)),
    whole=lambda: nn.utils.weight_norm(nn.Conv1d(6, 4, 2), dim=None),
    layer=lambda: nn.GRU(12, 5, batch_first=True),
)
def voice(self, x):
    """Frames with what is mirrored, repeated or goes round at both ends, and normed weights."""

    y, mirrored = x.transpose(1, 2), F.pad(x, (1, 0), mode="reflect")[..., :6].transpose(1, 2)
    parts = [self.over(F.pad(each, (1, 1), mode="circular")) for each in (y, mirrored)]
    parts.append(self.whole(F.pad(y, (1, 0), mode="replicate")))
    return self.layer(torch.cat(parts, 1).transpose(1, 2))[0]


@module(
    encoder=lambda: nn.LSTM(3, 4, 2, bidirectional=True, proj_size=2),
    decoder=lambda: nn.ModuleDict({"gru": nn.GRU(3, 2)}),
    scale=lambda: nn.Parameter(torch.tensor(2.0)),
)
def weights(self, x):
    return self.encoder(x)[0] * self.scale, self.decoder["gru"](x)[0]


def record_weights(folder: Path) -> None:
    """One state in all forms; the arrays by name are what all of them hold."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    whole = weights().eval()
    state = whole.state_dict()
    torch.save(state, folder / "state.pt")
    torch.save({"epoch": 3, "state_dict": state}, folder / "checkpoint.ckpt")
    torch.save(state, folder / "old.pth", _use_new_zipfile_serialization=False)
    traced = io.BytesIO()
    torch.jit.save(torch.jit.trace(whole, (torch.randn(5, 2, 3),)), traced)
    with zipfile.ZipFile(traced) as read, zipfile.ZipFile(folder / "traced.pt", "w") as archive:
        for info in read.infolist():
            if not info.filename.endswith(".debug_pkl"):  # paths of this machine
                archive.writestr(info, read.read(info))
    arrays = {name: value.numpy() for name, value in state.items()}
    save_safetensors(arrays, folder / "state.safetensors")
    np.savez(folder / "arrays.npz", **arrays)


def main() -> None:
    for name in ("tagger", "rows", "projected", "textline", "heads", "cells", "masked", "voice"):
        record(DATA / name, name, torch.export.save)
    record(DATA / "rows_dynamic", "rows", torch.export.save, dynamic=True)
    record(DATA / "tagger_2_5", "tagger", save_as_2_5)
    record(DATA / "last_2_8", "last", save_as_2_8)
    record_weights(DATA / "weights")


if __name__ == "__main__":
    main()
