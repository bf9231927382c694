"""Legacy static graphs of Paddle: built operator by operator, saved, run by Paddle and by us."""

from __future__ import annotations

import warnings

# Paddle 2.6.2 brings its own zlib; whoever loads Python's after it crashes.
import zlib  # noqa: F401
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.random  # noqa: F401
import paddle
from support.arrays import uniform

from onernn import Ragged, Session, load
from onernn.ir.arrays import Array
from onernn.ir.ragged import Batch, data_of, depth_of
from onernn.verification.comparing import TOLERANCES, Tolerance, compare

paddle.enable_static()
core = paddle.base.core
Tensor = getattr(core, "LoDTensor", None) or core.DenseTensor
Variable = Any
Build = Callable[["PaddleGraph", Mapping[str, Variable]], list[Variable]]

# One-level LoD with a sentence of length zero, two levels, a single word.
LODS = {
    "ragged": [[0, 2, 2, 5]],
    "two-levels": [[0, 1, 3], [0, 2, 2, 5]],
    "one-word": [[0, 1]],
}


# What operators give, the results that are asked for first; the others give ``Out``.
OUTPUTS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("reshape2", "squeeze2", "unsqueeze2", "transpose2"), ("Out", "XShape")),
    "flatten2": ("Out", "XShape"),
    "norm": ("Out", "Norm"),
    "flatten_contiguous_range": ("Out", "XShape"),
    "dropout": ("Out", "Mask"),
    "layer_norm": ("Y", "Mean", "Variance"),
    "batch_norm": ("Y", "SavedMean", "SavedVariance"),
    **dict.fromkeys(("top_k", "top_k_v2"), ("Out", "Indices")),
    **dict.fromkeys(("stack", "unstack", "sequence_reverse"), ("Y",)),
    **dict.fromkeys(("quantize", "dequantize", "requantize"), ("Output",)),
    **dict.fromkeys(("conv3d", "depthwise_conv2d_transpose"), ("Output",)),
    "group_norm": ("Y", "Mean", "Variance"),
    "viterbi_decode": ("Path", "Scores"),
    "sequence_pool": ("Out", "MaxIndex"),
    "sequence_pad": ("Out", "Length"),
    "crf_decoding": ("ViterbiPath",),
    "fusion_seqconv_eltadd_relu": ("Out", "ColMat"),
    "gru": ("Hidden", "BatchGate", "BatchResetHiddenPrev", "BatchHidden"),
    "fusion_gru": ("Hidden", "ReorderedH0", "XX", "BatchedInput", "BatchedOut"),
    "gru_unit": ("Hidden", "Gate", "ResetHiddenPrev"),
    "multi_gru": ("Hidden",),
    "lstm": ("Hidden", "Cell", "BatchGate", "BatchCellPreAct"),
    "fused_embedding_fc_lstm": (
        *("Hidden", "Cell", "XX", "BatchedInput", "BatchedHidden", "BatchedCell"),
        *("ReorderedH0", "ReorderedC0"),
    ),
    "rnn": ("Out", "State", "Reserve", "DropoutState"),
}
OUTPUTS["fusion_lstm"] = (*OUTPUTS["fused_embedding_fc_lstm"], "CheckedCell")
RESULTS = dict.fromkeys(("top_k", "top_k_v2", "sequence_pad", "rnn"), 2)
RESULTS |= dict.fromkeys(("lstm", "fusion_lstm", "fused_embedding_fc_lstm"), 2)
"""How many of them are asked for, where it is not the first one only."""
DTYPES = {"Indices": "int64", "MaxIndex": "int32", "Length": "int64", "ViterbiPath": "int64"}
DTYPES |= dict.fromkeys(("Reserve", "DropoutState"), "uint8") | {"Path": "int64"}


class PaddleGraph:
    """A graph under construction; `save` writes it, after which `SavedModel` runs it."""

    def __init__(self) -> None:
        self._main, self._startup = paddle.static.Program(), paddle.static.Program()
        self._scope = paddle.static.Scope()
        self._feeds: list[Variable] = []
        self._names = 0

    def feed(
        self, name: str, shape: Sequence[int], dtype: str = "float32", lod_level: int = 0
    ) -> Variable:
        """An input; -1 is a dynamic size."""
        with paddle.static.program_guard(self._main, self._startup):
            made = paddle.static.data(name, list(shape), dtype, lod_level=lod_level)
        self._feeds.append(made)
        return made

    def feed_like(self, name: str, value: Batch) -> Variable:
        """An input that takes this batch, and others of any number of sentences and words."""
        data = data_of(value)
        return self.feed(name, [-1, *data.shape[1:]], str(data.dtype), depth_of(value))

    def parameter(self, array: Array, name: str = "") -> Variable:
        """A persistable variable of these numbers, as saved with a model."""
        with paddle.static.program_guard(self._main, self._startup):
            made = self._main.global_block().create_var(
                name=self._name(name or "w"),
                shape=list(array.shape),
                dtype=str(array.dtype),
                persistable=True,
            )
        tensor = self._scope.var(made.name).get_tensor()
        tensor.set(np.ascontiguousarray(array), paddle.CPUPlace())
        return made

    def op(
        self,
        type: str,  # noqa: A002
        *,
        gives: str = "float32",
        counts: Mapping[str, int] | None = None,
        **rest: Any,
    ) -> Any:
        """Appends an operator; the output variable that is asked for, or the tuple of them.

        Names in capitals are slots, which hold a variable, a list of them or None; the others are
        attributes. ``gives``: the dtype of outputs that `DTYPES` does not tell. ``counts``: how
        many variables a slot holds, where it is a list of them.
        """
        block, outputs = self._main.global_block(), OUTPUTS.get(type, ("Out",))
        attributes = {name: value for name, value in rest.items() if name[0].islower()}
        slots = {
            name: value if isinstance(value, list) else [value]
            for name, value in rest.items()
            if name[0].isupper() and value is not None
        }
        made = {
            slot: [
                block.create_var(name=self._name(type), dtype=DTYPES.get(slot, gives))
                for _ in range((counts or {}).get(slot, 1))
            ]
            for slot in outputs
        }
        statistics = {f"{s}Out": slots[s] for s in ("Mean", "Variance") if s in slots}
        with paddle.static.program_guard(self._main, self._startup):
            whole = {**made, **statistics}
            block.append_op(type=type, inputs=slots, outputs=whole, attrs=attributes)
        found = tuple(made[slot] if slot in (counts or {}) else made[slot][0] for slot in outputs)
        wanted = RESULTS.get(type, 1)
        return found[:wanted] if wanted > 1 else found[0]

    def save(
        self, folder: Path, fetches: Sequence[Variable], *, clip_extra: bool = False
    ) -> SavedModel:
        """Writes ``model.pdmodel`` and ``model.pdiparams``, and opens them again in Paddle."""
        prefix = folder / "model"
        executor = paddle.static.Executor(paddle.CPUPlace())
        with paddle.static.scope_guard(self._scope), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "no variable in your model")
            paddle.static.save_inference_model(
                str(prefix),
                self._feeds,
                list(fetches),
                executor,
                program=self._main,
                clip_extra=clip_extra,  # Paddle's default drops outputs that its own gru needs
            )
        return SavedModel(prefix)

    def _name(self, stem: str) -> str:
        self._names += 1
        return f"{stem}_{self._names}"


class SavedModel:
    """Paddle's own reading of saved files, on CPU and with nothing fused."""

    def __init__(self, prefix: Path) -> None:
        self.folder = prefix.parent
        self._executor = paddle.static.Executor(paddle.CPUPlace())
        self._scope = paddle.static.Scope()
        with paddle.static.scope_guard(self._scope):
            self._program, self.inputs, self.fetches = paddle.static.load_inference_model(
                str(prefix), self._executor
            )

    def execute(self, feeds: Mapping[str, Batch]) -> list[Any]:
        """Every fetched value, a tensor of Paddle each."""
        with paddle.static.scope_guard(self._scope):
            return self._executor.run(
                self._program,
                feed={name: tensor(value) for name, value in feeds.items()},
                fetch_list=self.fetches,
                return_numpy=False,
            )

    def run(self, feeds: Mapping[str, Batch]) -> list[Batch]:
        """Every fetched value: ragged where Paddle's tensor carries a LoD."""
        return [batch(result) for result in self.execute(feeds)]


def tensor(value: Batch) -> Any:
    """A tensor of Paddle with the same numbers and LoD."""
    made = Tensor()
    made.set(np.asarray(data_of(value), order="C"), paddle.CPUPlace())
    if isinstance(value, Ragged):
        made.set_lod(value.lod)
    return made


def batch(result: Any) -> Batch:
    """A tensor of Paddle as an array, or as `Ragged` where it carries a LoD."""
    data = np.array(result)
    return Ragged.from_lod(data, result.lod()) if result.lod() else data


def differences(
    actual: Mapping[str, Batch], expected: Sequence[Batch], tolerance: Tolerance = TOLERANCES["f32"]
) -> list[str]:
    """What is not the same in values, dtype, shape or LoD, an output a line; none if all is."""
    found = []
    for (name, ours), theirs in zip(actual.items(), expected, strict=True):
        data = [data_of(value) for value in (ours, theirs)]
        if isinstance(ours, Ragged) and not isinstance(theirs, Ragged):
            found.append(f"{name}: LoD {ours.lod} where Paddle has none")
        elif data[0].dtype != data[1].dtype:
            found.append(f"{name}: dtype {data[0].dtype}, Paddle's is {data[1].dtype}")
        elif not (verdict := compare(name, ours, theirs, tolerance)).passed:
            found.append(f"{name}: {verdict.reason}")
    return found


def check(saved: SavedModel, feeds: Sequence[Mapping[str, Batch]]) -> None:
    """Ours and Paddle's give the same for several batches in a row through one session."""
    session = Session(load(saved.folder), backend="reference")
    for each in feeds:
        assert not (found := differences(session.run(each), saved.run(each))), found


@dataclass(frozen=True, eq=False)
class Fixed:
    """A parameter of these numbers."""

    array: Array


def numbers(*shape: int, seed: int = 0) -> Array:
    return uniform(*shape, seed=[seed, *shape], bound=2)


def ragged(lod: list[list[int]] | None, *sizes: int, seed: int = 0) -> Batch:
    """Numbers under a LoD, or 5 rows without one."""
    data = numbers(lod[-1][-1] if lod else 5, *sizes, seed=seed)
    return Ragged.from_lod(data, lod) if lod else data


def row(operator: str, **rest: Any) -> Build:
    """What appends an operator, and gives the results that are asked for.

    Names in capitals are slots, which hold an input of the graph (its name), a parameter (`Fixed`,
    or the shape of random numbers), the result of another row, or a list of them; the others are
    those of `PaddleGraph.op`.
    """

    def build(graph: PaddleGraph, inputs: Mapping[str, Variable]) -> list[Variable]:
        def variable(value: Any) -> Any:
            if isinstance(value, list):
                return [variable(each) for each in value]
            if isinstance(value, str):
                return inputs[value]
            if callable(value):
                return value(graph, inputs)[0]
            return graph.parameter(value.array if isinstance(value, Fixed) else numbers(*value))

        made = {name: variable(value) for name, value in rest.items() if name[0].isupper()}
        found = graph.op(operator, **{**rest, **made})
        results = found if isinstance(found, tuple) else [found]
        return [v for each in results for v in (each if isinstance(each, list) else [each])]

    return build


def saved_graph(folder: Path, feeds: Mapping[str, Batch], build: Build) -> SavedModel:
    """The files of what ``build`` appends to inputs like these."""
    graph = PaddleGraph()
    made = build(graph, {name: graph.feed_like(name, value) for name, value in feeds.items()})
    folder.mkdir(parents=True, exist_ok=True)
    return graph.save(folder, made)


def assert_same(folder: Path, feeds: Mapping[str, Batch], build: Build) -> None:
    """Ours and Paddle's give the same, in a second run of the session, too."""
    check(saved_graph(folder, feeds, build), [feeds, feeds])
