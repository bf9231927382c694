"""Random recurrent models of MXNet, built and saved in every way that MXNet had."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
from tests.frameworks.mxnet_graphs import Block, hybridized, run, save, stacked

from onernn.ir.arrays import Array

Random = np.random.Generator


@dataclass(frozen=True)
class Saved:
    """A model in files, what goes in, and what MXNet computed from it.

    ``rnns``: how many rnn nodes are left when it is fused, None where that depends.
    """

    kind: str
    symbol: Path
    inputs: dict[str, Array]
    expected: list[Array]
    names: list[str]
    rnns: int | None


def uniform(rng: Random, *shape: int, bound: float = 1.0) -> Array:
    return rng.uniform(-bound, bound, shape).astype(np.float32)


def choose(rng: Random, *names: str) -> str:
    return str(rng.choice(names))


def contractive(symbol: Any, inputs: Mapping[str, Array], seed: Any = 1) -> dict[str, Array]:
    """Numbers for all variables that are no inputs, so small that rounding does not grow."""
    rng = np.random.default_rng(seed)
    whole = [*symbol.list_arguments(), *symbol.list_auxiliary_states()]
    shapes, _, more = symbol.infer_shape(**{name: a.shape for name, a in inputs.items()})
    sizes = {n: s for n, s in zip(whole, [*shapes, *more], strict=True) if n not in inputs}
    bounds = {n: 0.3 if "parameters" in n else 1 / np.sqrt(max(s[-1], 4)) for n, s in sizes.items()}
    return {name: uniform(rng, *shape, bound=bounds[name]) for name, shape in sizes.items()}


def fed(symbol: Any, **inputs: Array) -> dict[str, Array]:
    """Inputs, and parameters that are `contractive`."""
    return {**inputs, **contractive(symbol, inputs)}


def exported(
    kind: str,
    block: Any,
    inputs: list[Array],
    folder: Path,
    rnns: int | None,
    bound: float = 0.3,
) -> Saved:
    """A gluon block as its users save it: hybridized, run, exported."""
    hybridized(block, bound)
    with mx.autograd.pause():
        out = block(*map(mx.nd.array, inputs))
    outputs = [each.asnumpy() for each in _flat(out)]
    block.export(str(folder / "model"))
    file = folder / "model-symbol.json"
    symbol = mx.sym.load(str(file))
    names = sorted(name for name in symbol.list_arguments() if name.startswith("data"))
    return Saved(
        kind, file, dict(zip(names, inputs, strict=True)), outputs, symbol.list_outputs(), rnns
    )


def _flat(value: Any) -> list[Any]:
    return (
        [v for each in value for v in _flat(each)] if isinstance(value, list | tuple) else [value]
    )


def around(layer: Callable[[], Any]) -> Block:
    """Embedding -> recurrent layer -> projection, as in language models and taggers."""

    def run(net: Any, F: Any, ids: Any, *states: Any) -> Any:  # noqa: N803
        embedded = net.embed(ids)
        y, after = net.layer(embedded, list(states)) if states else (net.layer(embedded), ())
        made = net.out(net.norm(y))
        return (made, *after) if states else made

    nn = mx.gluon.nn
    dense = lambda: nn.Dense(4, flatten=False, activation="tanh")  # noqa: E731
    return Block(run, embed=lambda: nn.Embedding(11, 5), layer=layer, norm=nn.LayerNorm, out=dense)


def gluon_layer(rng: Random, folder: Path) -> Saved:
    layout = choose(rng, "TNC", "NTC")
    layers, sides = (int(rng.integers(1, 3)) for _ in range(2))
    kind = choose(rng, "LSTM", "GRU", "RNN")
    t, n, h = (int(rng.integers(1, high)) for high in (7, 5, 8))
    with_state = bool(rng.random() < 0.4)
    options: dict[str, Any] = {"dropout": 0.2, "bidirectional": sides == 2, "layout": layout}
    if kind == "RNN":
        options["activation"] = choose(rng, "relu", "tanh")

    def layer() -> Any:
        return getattr(mx.gluon.rnn, kind)(h, layers, **options)

    ids = rng.integers(0, 11, (t, n) if layout == "TNC" else (n, t)).astype(np.float32)
    inputs = [ids]
    if with_state:
        inputs += [uniform(rng, layers * sides, n, h) for _ in range(1 + (kind == "LSTM"))]
    # Large enough for the LayerNorm, which multiplies by one over the deviation.
    return exported("gluon_layer", around(layer), inputs, folder, 1, bound=1)


def unrolled(cell: Callable[[], Any], steps: int, **options: Any) -> Block:
    """A cell over a fixed number of steps."""

    def run(net: Any, F: Any, x: Any) -> Any:  # noqa: N803
        outputs, after = net.cell.unroll(steps, x, **options)
        if isinstance(outputs, list):
            return (net.out(F.concat(*outputs, dim=-1)), outputs[0], *after)
        return (net.out(outputs), *after)

    return Block(run, cell=cell, out=lambda: mx.gluon.nn.Dense(3, flatten=False))


def _gluon_cell(rng: Random, h: int) -> Callable[[], Any]:
    cells = mx.gluon.rnn
    act = choose(rng, "relu", "tanh")
    kinds: list[Callable[[], Any]] = [
        lambda: cells.LSTMCell(h),
        lambda: cells.GRUCell(h),
        lambda: cells.RNNCell(h, activation=act),
    ]
    return kinds[int(rng.integers(0, 3))]


# How cells are put together, and how many rnns they become. The final states of both directions
# are wanted: they stay two. Masks of a zoneout or of a variational dropout are in the way, and
# cell states of other steps.
FORMS: dict[str, tuple[Callable[[Any, Any], Any], int | None]] = {
    "one": (lambda one, other: one(), 1),
    "stack": (lambda one, other: stacked(one(), other()), 2),
    "dropout": (lambda one, other: stacked(one(), mx.gluon.rnn.DropoutCell(0.3), other()), 2),
    "bidirectional": (lambda one, other: mx.gluon.rnn.BidirectionalCell(one(), one()), 2),
    "deep": (
        lambda one, other: stacked(mx.gluon.rnn.BidirectionalCell(one(), one()), other()),
        3,
    ),
    "residual": (lambda one, other: mx.gluon.rnn.ResidualCell(one()), 1),
    "variational": (
        lambda one, other: mx.gluon.contrib.rnn.VariationalDropoutCell(one(), 0.2, 0.1, 0.3),
        None,
    ),
    "zoneout": (lambda one, other: mx.gluon.rnn.ZoneoutCell(one(), 0.2, 0.1), None),
}


def sizes(rng: Random) -> Iterator[int]:
    """Steps, sentences, numbers of a step and units."""
    return (int(rng.integers(low, high)) for low, high in ((2, 7), (1, 5), (1, 8), (1, 7)))


def gluon_cells(rng: Random, folder: Path) -> Saved:
    t, n, i, h = sizes(rng)
    layout = choose(rng, "NTC", "TNC")
    form = choose(rng, *FORMS)
    one, other = _gluon_cell(rng, i if form == "residual" else h), _gluon_cell(rng, h)
    make, rnns = FORMS[form]
    x = uniform(rng, *((n, t, i) if layout == "NTC" else (t, n, i)))
    merge = bool(rng.random() < 0.6)
    block = unrolled(lambda: make(one, other), t, layout=layout, merge_outputs=merge)
    return exported(f"gluon_cells_{form}", block, [x], folder, rnns)


def masked(cell: Callable[[], Any], steps: int) -> Block:
    """A cell over padded sequences of given lengths."""

    def run(net: Any, F: Any, x: Any, lengths: Any) -> Any:  # noqa: N803
        outputs, after = net.cell.unroll(steps, x, None, "NTC", True, valid_length=lengths)
        return (outputs, *after)

    return Block(run, cell=cell)


def gluon_lengths(rng: Random, folder: Path) -> Saved:
    t, n, i, h = sizes(rng)
    one = _gluon_cell(rng, h)
    both = bool(rng.integers(0, 2))
    block = masked((lambda: mx.gluon.rnn.BidirectionalCell(one(), one())) if both else one, t)
    lengths = rng.integers(1, t + 1, n).astype(np.float32)
    return exported("gluon_lengths", block, [uniform(rng, n, t, i), lengths], folder, None)


def looped(cell: Callable[[], Any]) -> Block:
    def run(net: Any, F: Any, x: Any, *states: Any) -> Any:  # noqa: N803
        outputs, after = F.contrib.foreach(net.cell, x, list(states))
        return (outputs, *after)

    return Block(run, cell=cell)


def gluon_loop(rng: Random, folder: Path) -> Saved:
    t, n, i, h = (int(rng.integers(1, high)) for high in (7, 5, 8, 7))
    kind = choose(rng, "LSTMCell", "GRUCell", "RNNCell")
    states = [uniform(rng, n, h) for _ in range(1 + (kind == "LSTMCell"))]
    block = looped(lambda: getattr(mx.gluon.rnn, kind)(h, input_size=i))
    return exported("gluon_loop", block, [uniform(rng, t, n, i), *states], folder, 1)


def legacy_cells(rng: Random, folder: Path) -> Saved:
    """mx.rnn's cells, fused and unfused, as Module's users unrolled them."""
    t, n, i, h = sizes(rng)
    mode = choose(rng, "rnn_relu", "rnn_tanh", "lstm", "gru")
    layers, both = int(rng.integers(1, 3)), bool(rng.integers(0, 2))
    wants = bool(rng.integers(0, 2))
    cell = mx.rnn.FusedRNNCell(
        h, layers, mode, bidirectional=both, get_next_state=wants, prefix=f"{mode}_", dropout=0.2
    )
    fused = bool(rng.random() < 0.4)
    layout = choose(rng, "NTC", "TNC")
    cell = cell if fused else cell.unfuse()
    x = mx.sym.Variable("data")
    outputs, states = cell.unroll(t, x, layout=layout, merge_outputs=True)
    heads = [mx.sym.Reshape(outputs, shape=(-1, h * (1 + both)))]
    heads += states if wants and fused else []
    inputs = {"data": uniform(rng, *((n, t, i) if layout == "NTC" else (t, n, i)))}
    symbol = mx.sym.Group(heads)
    rnns = 1 if fused else layers
    params = contractive(symbol, inputs, rng)
    file, expected = save(symbol, params, folder / "model"), run(symbol, {**inputs, **params})
    kind = f"legacy_{'fused' if fused else 'unfused'}"
    return Saved(kind, file, inputs, expected, symbol.list_outputs(), rnns)


def gluon_images(rng: Random, folder: Path) -> Saved:
    """Convolutional cells, whose first states are zeros for any number of sequences."""
    t, n, i, h = sizes(rng)
    axes, layout = int(rng.integers(1, 4)), choose(rng, "NTC", "TNC")
    kind = choose(rng, "RNN", "LSTM", "GRU")
    image = (i, *(int(size) for size in rng.integers(3, 6, axes)))
    make = getattr(mx.gluon.contrib.rnn, f"Conv{axes}D{kind}Cell")
    options: dict[str, Any] = {"i2h_kernel": 3, "h2h_kernel": 3, "i2h_pad": 1}

    def run(net: Any, F: Any, x: Any) -> Any:  # noqa: N803
        outputs, after = net.cell.unroll(t, x, layout=layout, merge_outputs=True)
        return (outputs, *after)

    block = Block(run, cell=lambda: make(image, h, **options))
    x = uniform(rng, *((n, t) if layout == "NTC" else (t, n)), *image)
    return exported("gluon_images", block, [x], folder, None)


KINDS = [
    gluon_layer,
    gluon_cells,
    gluon_lengths,
    gluon_loop,
    legacy_cells,
    gluon_images,
]


def random_model(seed: int, folder: Path) -> Saved:
    rng = np.random.default_rng(seed)
    mx.random.seed(seed)
    return KINDS[seed % len(KINDS)](rng, folder)
