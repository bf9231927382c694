"""Symbols of MXNet: run by MXNet on CPU, saved as users do, run by us."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
from support import recorded_operators
from support.recorded_operators import Recorded

from onernn.adapters.mxnet import plugin
from onernn.ir.arrays import Array

Arrays = Mapping[str, Array]


@contextlib.contextmanager
def numpy_mode(on: bool = True) -> Iterator[None]:
    """MXNet's NumPy mode: a size of 0 is empty, results may be scalars."""
    with mx.util.np_shape(on), mx.util.np_array(on):
        yield


def run(symbol: Any, arrays: Arrays, *, numpy: bool = False) -> list[Array]:
    """What MXNet computes on CPU, in inference; labels, which it wants to be there, are zeros."""
    with numpy_mode(numpy):
        auxiliary = symbol.list_auxiliary_states()
        made = {name: mx.nd.array(a, dtype=a.dtype) for name, a in arrays.items()}
        labels = [name for name in symbol.list_arguments() if name.endswith("_label")]
        if labels:
            sizes = symbol.infer_shape(**{name: a.shape for name, a in arrays.items()})[0]
            sized = dict(zip(symbol.list_arguments(), sizes, strict=True))
            made |= {name: mx.nd.zeros(sized[name]) for name in labels}
        bound = symbol.bind(
            mx.cpu(),
            {name: made[name] for name in symbol.list_arguments() if name in made},
            aux_states={name: made[name] for name in auxiliary},
        )
        return [out.asnumpy() for out in bound.forward(is_train=False)]


class Block(mx.gluon.HybridBlock):  # type: ignore[misc]
    """A block of children that are made in its scope; ``run(block, F, *inputs)`` is its forward."""

    def __init__(self, run: Callable[..., Any], **children: Callable[[], Any]) -> None:
        super().__init__()
        self._run = run
        with self.name_scope():
            for name, make in children.items():
                setattr(self, name, make())

    def hybrid_forward(self, F: Any, *inputs: Any) -> Any:  # noqa: N803
        return self._run(self, F, *inputs)


def hybridized(block: Any, bound: float = 0.4) -> Any:
    block.initialize(mx.init.Uniform(bound))
    block.hybridize()
    return block


def network(part: Callable[[], Any], steps: int, *, states: bool = False) -> Block:
    """A layer, or a cell unrolled over steps of given lengths, and a projection.

    ``states``: the sum of a cell's last states is added.
    """

    def run(net: Any, F: Any, x: Any, lengths: Any = None) -> Any:  # noqa: N803
        if not isinstance(net.part, mx.gluon.rnn.RecurrentCell):
            return net.out(net.part(x))
        y, after = net.part.unroll(steps, x, None, "NTC", True, valid_length=lengths)
        made = net.out(y)
        for state in after if states else ():
            made = F.broadcast_add(made, F.mean(state))
        return made

    return Block(run, part=part, out=lambda: mx.gluon.nn.Dense(3, flatten=False))


def stacked(*cells: Any, legacy: bool = False) -> Any:
    """One cell of several, of gluon's or of mx.rnn's."""
    kind = mx.rnn.SequentialRNNCell if legacy else mx.gluon.rnn.HybridSequentialRNNCell
    result = kind()
    for cell in cells:
        result.add(cell)
    return result


def imported(block: Any, folder: Path, *inputs: str) -> Any:
    """The SymbolBlock of the files that a block's export writes, ``m-symbol.json`` in a folder."""
    block.export(str(folder / "m"))
    symbol, params = (str(folder / name) for name in ("m-symbol.json", "m-0000.params"))
    return mx.gluon.SymbolBlock.imports(symbol, [*inputs], params)


def losses_of(
    block: Any,
    *given: Array,
    plug: Callable[[Any], Any] = lambda block: block,
    steps: int = 20,
    hybrid: bool = True,
    arrays: Any = mx.nd,
) -> list[float]:
    """Of a block that Adam trains, from parameters of a seed; ``plug`` changes it."""
    inputs = [arrays.array(array) for array in given]
    block.initialize()
    block.hybridize(hybrid)
    block(*inputs)
    rng = np.random.default_rng(6)
    for _, parameter in sorted(block.collect_params().items()):
        parameter.set_data(arrays.array(rng.uniform(-0.3, 0.3, parameter.shape)))
    plug(block)
    trainer = mx.gluon.Trainer(block.collect_params(), "adam", {"learning_rate": 0.02})
    losses = []
    for _ in range(steps):
        with mx.autograd.record():
            loss = ((block(*inputs) - 0.3) ** 2).mean()
        loss.backward()
        trainer.step(1)
        losses.append(float(loss.asnumpy()))
    return losses


def run_recorded(case: Recorded) -> dict[str, Array]:
    """What this MXNet computes from a recorded symbol, by its own names of outputs."""
    with numpy_mode(case.numpy):
        symbol = mx.sym.load_json(case.text)
    outputs = run(symbol, {**case.inputs, **case.params}, numpy=case.numpy)
    return dict(zip(symbol.list_outputs(), outputs, strict=True))


def save(symbol: Any, params: Arrays, prefix: Path) -> Path:
    """``prefix-symbol.json`` and ``prefix-0000.params``, as Module and export write them."""
    auxiliary = set(symbol.list_auxiliary_states())
    symbol.save(f"{prefix}-symbol.json")
    keyed = {
        f"{'aux' if name in auxiliary else 'arg'}:{name}": mx.nd.array(a, dtype=a.dtype)
        for name, a in params.items()
    }
    mx.nd.save(f"{prefix}-0000.params", keyed)
    return Path(f"{prefix}-symbol.json")


def operators_of(symbol: Any) -> set[str]:
    """The names of all operators in a symbol, subgraphs included."""
    return recorded_operators.operators_of(json.loads(symbol.tojson()))


def optimize(target: Any, params: Any = None, **options: Any) -> Any:
    """The plug-in's, where small layers become ours, too: those that MXNet is faster at."""
    return plugin.optimize(target, params, **{"backend": "kernels", **options})
