"""A conformance kit for backends of ONNX: each case is a model of one node RNN, GRU or LSTM.

    from onernn.verification.node_suite import NodeConformance

    class TestMyBackend(NodeConformance):
        backend = my_backend                      # has prepare or run_model of
                                                  # onnx.backend.base.Backend
        known_failures = "known_failures.toml"    # see `Conformance`

`node_cases` yields the cases as `TestCase`s of onnx.backend.test.
``python -m onernn.verification.node_suite FOLDER`` writes them in that suite's format:
FOLDER/test_NAME/model.onnx, data.json (tolerances), test_data_set_0/input_0.pb, ..., output_0.pb.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from onernn.adapters.common.adapter import require
from onernn.backend import State, reference_stack
from onernn.ir.arrays import Array
from onernn.ir.ragged import Ragged
from onernn.ir.spec import Cell, Direction
from onernn.reorders.layers import PivotLayer
from onernn.reorders.layouts import framework
from onernn.verification import suite
from onernn.verification.suite import LENGTHS, SIZES, STATES, Case, Conformance, combinations

CELLS = tuple(cell for cell in suite.CELLS if not re.search("projection|cell_clip|augru", cell))
"""The cells that ONNX's nodes can express: no projection, no clipping of the cell state, no
attention.
"""
DIRECTIONS: tuple[Direction, ...] = ("left2right", "right2left", "bidirectional_concat")
_ONNX = {"left2right": "forward", "right2left": "reverse", "bidirectional_concat": "bidirectional"}
_PLAIN = "RNN_"
OPSET = 14


class NodeConformance(Conformance):
    """Tests of an ONNX backend, one node per case. Subclass it under a name that pytest collects.

    Weights, lengths and states are inputs of the model, the same as in ONNX's own node tests. T and
    N are dynamic sizes, and several batches run after one ``prepare``. ONNX defines neither the
    values of Y after a sequence's end nor sequences of length zero, so neither is tested.

    >>> import onnxruntime.backend
    >>> from onernn.verification.node_suite import NodeConformance
    >>> class TestRuntime(NodeConformance):
    ...     backend = onnxruntime.backend
    ...     cells = ("lstm", "lbr_gru")
    """

    backend: Any = None
    """A class or module with ``prepare(model, device)`` or ``run_model(model, inputs, device)``."""
    device: str = "CPU"
    cells = CELLS
    directions = DIRECTIONS
    layers = (1,)
    empty_sentences = False

    def layer(self, case: Case) -> Any:
        """Returns the backend's prepared model of the case's node; the model itself if the backend
        has no ``prepare``.

        Raises `TypeError` if the class has no ``backend``.
        """
        if self.backend is None:
            raise TypeError(f"{type(self).__name__}: expected a backend: write backend = ...")
        model = node_model(case)
        prepare = getattr(self.backend, "prepare", None)
        return model if prepare is None else prepare(model, self.device)

    def outputs(self, layer: Any, case: Case) -> tuple[list[Array], State]:
        """Returns Y of each sequence (T_n, D*O) and the final states (1, D, N, O) of the model.

        Raises `TypeError` if the backend returns a wrong number or shape of arrays.
        """
        inputs = [*node_inputs(case).values()]
        if hasattr(layer, "run"):
            results = layer.run(inputs)
        else:
            results = self.backend.run_model(layer, inputs, self.device)
        names = _outputs(case)
        if not isinstance(results, Sequence) or len(results) != len(names):
            raise TypeError(
                f"run: expected a list of {', '.join(names)}, got {type(results).__name__}"
                f" {results!r}"
            )
        y, *states = map(np.asarray, results)
        sizes = (int(max(case.lengths)), case.spec.directions, len(case.x), case.spec.hidden_size)
        if y.shape != sizes:
            raise TypeError(f"Y: expected (T, D, N, O) = {sizes}, got {y.shape}")
        joined = y.transpose(0, 2, 1, 3).reshape(*y.shape[::2], -1)
        return case.cut(joined, time_major=True), tuple(state[None] for state in states)


def node_inputs(case: Case) -> dict[str, Array]:
    """Returns the inputs of the case's ONNX model by name, in order."""
    arrays = framework("onnx").write(PivotLayer.of(case.spec, list(case.weights)))
    inputs = {"X": case.pad(time_major=True), **{name: arrays[name] for name in "WRB"}}
    if len(set(case.lengths)) > 1:
        inputs["sequence_lens"] = case.lengths.astype(np.int32)
    if case.state is not None:
        names = ("initial_h", "initial_c")
        inputs |= {name: part[0] for name, part in zip(names, case.state, strict=False)}
    return inputs | ({"P": arrays["P"]} if case.spec.peephole else {})


def node_model(case: Case, masked: bool = False) -> Any:
    """Returns an `onnx.ModelProto` with the case's node. ``masked``: add a Where that sets Y to 0
    after each sequence.
    """
    onnx = require("onnx", "onnx")
    helper, spec, given = onnx.helper, case.spec, node_inputs(case)
    slots = ["X", "W", "R", "B", "sequence_lens", "initial_h"]
    slots += ["initial_c", "P"] if spec.cell is Cell.LSTM else []
    names = [name if name in given else "" for name in slots]
    while not names[-1]:
        names.pop()
    attributes: dict[str, Any] = {"hidden_size": spec.hidden_size}
    attributes["direction"] = _ONNX[spec.direction]
    if spec.gate_clip:
        attributes["clip"] = spec.gate_clip
    plain = spec.cell.name.startswith(_PLAIN)
    if plain:  # RNN_TANH: "Tanh"
        function = spec.cell.name.removeprefix(_PLAIN).capitalize()
        attributes["activations"] = [function] * spec.directions
    if spec.cell.is_gru:
        attributes["linear_before_reset"] = int(spec.cell is Cell.LBR_GRU)
    op = "RNN" if plain else "GRU" if spec.cell.is_gru else "LSTM"
    outputs = _outputs(case)
    nodes = [helper.make_node(op, names, outputs, **attributes)]
    kept = []
    if masked and "sequence_lens" in given:
        nodes[0].output[0] = "Y_of_all_steps"
        nodes += [helper.make_node("Where", ["is_word", "Y_of_all_steps", "zero"], ["Y"])]
        is_word = np.arange(max(case.lengths))[:, None] < case.lengths
        kept = [
            onnx.numpy_helper.from_array(is_word[:, None, :, None], "is_word"),
            onnx.numpy_helper.from_array(np.zeros((), given["X"].dtype), "zero"),
        ]
    kind = onnx.TensorProto.DOUBLE if case.dtype == "f64" else onnx.TensorProto.FLOAT

    def value(name: str, shape: Sequence[Any]) -> Any:
        known = onnx.TensorProto.INT32 if name == "sequence_lens" else kind
        return helper.make_tensor_value_info(name, known, shape)

    d, o = spec.directions, spec.hidden_size
    free = {"X": ("T", "N", spec.input_size), "sequence_lens": ("N",)}
    free |= dict.fromkeys(("initial_h", "initial_c", "Y_h", "Y_c"), (d, "N", o))
    inputs = [value(name, free.get(name, array.shape)) for name, array in given.items()]
    made = [value(name, free.get(name, ("T", d, "N", o))) for name in outputs]
    graph = helper.make_graph(nodes, case.name, inputs, made, kept)
    opsets = [helper.make_opsetid("", OPSET)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8, producer_name="onernn")
    onnx.checker.check_model(model)
    return model


def _outputs(case: Case) -> list[str]:
    return ["Y", *(f"Y_{state}" for state in case.spec.cell.states)]


def node_cases(
    cells: Sequence[str] = CELLS,
    directions: Sequence[Direction] = DIRECTIONS,
    lengths: Sequence[str] = tuple(LENGTHS),
    states: Sequence[str] = STATES,
    dtypes: Sequence[str] = ("f32",),
    sizes: Sequence[str] = tuple(SIZES),
) -> Iterator[Any]:
    """Yields the cases as `onnx.backend.test.case.test_case.TestCase`; float64 computed their
    outputs.

    Raises `ValueError` that names the parameter with an unknown value.

    >>> from onernn.verification.node_suite import node_cases
    >>> cases = node_cases(["gru"], ["left2right"], ["equal"], ["zeros"], sizes=["odd"])
    >>> [case.name for case in cases]
    ['test_gru_left2right_1layer_equal_zeros_f32_odd']
    """
    require("onnx", "onnx")
    from onnx.backend.test.case.test_case import TestCase

    for each in combinations(cells, directions, (1,), lengths, states, dtypes, sizes):
        case = each.case(empty=False)
        spec = case.spec
        y, final = reference_stack(spec, list(case.weights), "f64").run(case.x, case.state)
        assert isinstance(y, Ragged)  # because case.x is ragged
        padded = y.to_padded(time_major=True)
        parts = padded.reshape(*padded.shape[:2], spec.directions, -1).transpose(0, 2, 1, 3)
        dtype = case.x.data.dtype
        expected = [parts.astype(dtype), *(part[0].astype(dtype) for part in final)]
        name = "test_" + case.name.replace("-", "_")
        model = node_model(case, masked=True)
        data = [([*node_inputs(case).values()], expected)]
        # For numpy.testing.assert_allclose: rounding errors of sums of some ten terms.
        rtol, atol = (1e-11, 1e-12) if case.dtype == "f64" else (1e-4, 2e-6)
        yield TestCase(name, name, None, None, model, data, "node", rtol, atol)


def write_node_cases(folder: str | Path, cases: Iterable[Any] | None = None) -> int:
    """Writes cases, by default all, in the format of onnx.backend.test, and returns their number.

    Raises `MissingDependencyError` if onnx is not installed.

    >>> from onernn.verification.node_suite import node_cases, write_node_cases
    >>> cases = node_cases(["gru"], ["left2right"], ["equal"], ["zeros"], sizes=["odd"])
    >>> write_node_cases("cases", cases)
    1
    """
    onnx = require("onnx", "onnx")
    chosen = list(node_cases() if cases is None else cases)
    for case in chosen:
        data = Path(folder, case.name, "test_data_set_0")
        data.mkdir(parents=True, exist_ok=True)
        onnx.save(case.model, data.parent / "model.onnx")
        allowed = json.dumps({"rtol": case.rtol, "atol": case.atol})
        Path(data.parent, "data.json").write_text(allowed, "utf-8")
        for kind, values, names in (
            ("input", case.data_sets[0][0], case.model.graph.input),
            ("output", case.data_sets[0][1], case.model.graph.output),
        ):
            for index, (array, value) in enumerate(zip(values, names, strict=True)):
                tensor = onnx.numpy_helper.from_array(np.ascontiguousarray(array), value.name)
                (data / f"{kind}_{index}.pb").write_bytes(tensor.SerializeToString())
    return len(chosen)


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit("usage: python -m onernn.verification.node_suite FOLDER")
    print(write_node_cases(sys.argv[1]), "cases")
