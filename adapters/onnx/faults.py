"""Known faults of ONNX files: what was written wrong, and what ONNX Runtime does with the rest.

Found in files that people deploy, and in what PyTorch's exporters write: design/0018.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from onernn.adapters.common.fault import Effect, FaultyModel, FrameworkFault, Values, keep_unchanged
from onernn.adapters.common.native import NativeGraph
from onernn.adapters.onnx.lower import lower
from onernn.adapters.onnx.read import Model, Operator, Subgraph, read_model
from onernn.fuse_passes.views import is_view
from onernn.ir.graph import UNSUPPORTED, Graph, NativeOp, Node

PATHS = {"file": "the file as it says, whoever runs it", "onnxruntime": "ONNX Runtime on a CPU"}

_RECURRENT = ("GRU", "LSTM", "RNN", "DynamicQuantizeLSTM")

_FILES = {  # by size and SHA-256
    (1280395, "1e0b195ad4806595ef4466f419d16fca7e4afcfc6669b8c0b5f76ea87547c769"): (
        "silero_vad_half.onnx of silero-vad 6.2.3 holds other weights than the files beside it: its"
        " probability of speech is up to 0.95 apart from theirs; take silero_vad.onnx"
    )
}

OnnxFault = FrameworkFault[Model]


def find_faults(path: str | Path) -> FaultyModel[Model]:
    """Returns the model in a file with its faults."""
    model = read_model(path)
    graph = lower(model)
    runs = not any(node.op == UNSUPPORTED for node in graph.nodes)
    faults = [*_of_file(Path(path)), *_forgotten_states(graph), *_states_of_one_batch(graph)]
    faults += [*_returned_states(graph), *_unread_lengths(model)]
    for result, op in model.graph.everywhere():
        faults += _lengths_of_one_batch(graph, result, op)
        faults += _layout(op)
        faults += _dynamic_quantized(op)
        faults += _projection(result, op)
        faults += _reset_before(model, op, runs and result is model.graph)
    return FaultyModel("ONNX files and ONNX Runtime", model, lower, PATHS, tuple(faults))


def _of_file(path: Path) -> Iterator[OnnxFault]:
    size = path.stat().st_size
    if any(size == known for known, _ in _FILES):
        from hashlib import sha256  # which loads OpenSSL

        if text := _FILES.get((size, sha256(path.read_bytes()).hexdigest())):
            yield _fault("other_weights", "wrong", "file", NativeOp(0, "file"), path.name, text)


def _reset_before(model: Model, op: Operator, runs: bool) -> Iterator[OnnxFault]:
    """torch.nn.GRU resets behind its product, as linear_before_reset=1 does; it has no other way.

    The exporter through TorchScript always wrote that. The one of torch.export took it from
    onnxscript, which left it out before 0.7 (onnxscript#2852, pytorch#189225).
    The file does not name onnxscript's version, so the GRU itself is examined.
    """
    if op.type != "GRU" or not model.producer.startswith("pytorch"):
        return
    if op.attributes.get("linear_before_reset", 0):
        return
    text = (
        f"{model.producer} wrote linear_before_reset=0; torch.nn.GRU computes 1, and the weights"
        " were trained for that: export again with onnxscript 0.7 or later, or set it to 1"
    )
    change = partial(_with_reset_behind, position=op.position) if runs else None
    at = op.native
    yield _fault("reset_before_product", "wrong", "file", at, op.outputs[0], text, change)


def _with_reset_behind(model: Model, *, position: int) -> Model:
    operators = tuple(
        replace(op, attributes={**op.attributes, "linear_before_reset": 1})
        if op.position == position
        else op
        for op in model.graph.operators
    )
    return replace(model, graph=replace(model.graph, operators=operators))


def _projection(graph: Subgraph, op: Operator) -> Iterator[OnnxFault]:
    """PyTorch's exporter writes proj_size as hidden_size, and cuts the weights to fit."""
    hidden = op.attributes.get("hidden_size")
    if op.type != "LSTM" or not isinstance(hidden, int):
        return
    held = {**_made_constants(graph), **graph.constants}
    for name, axis, per_unit in ((5, -1, 1), (6, -1, 1), (1, 1, 4), (2, 1, 4), (2, -1, 1)):
        array = held.get(op.inputs[name]) if name < len(op.inputs) else None
        if array is not None and array.ndim > 1 and array.shape[axis] != per_unit * hidden:
            text = (
                f"{op.inputs[name]} {array.shape} does not fit hidden_size={hidden}: an LSTM with"
                " proj_size, which ONNX's has not; ONNX Runtime refuses the file, and PyTorch's"
                " exporter left weights out of it: export the cell unrolled, or take PyTorch's file"
            )
            at = op.native
            yield _fault("projection_cut", "refuses", "onnxruntime", at, op.outputs[0], text)
            return


def _made_constants(graph: Subgraph) -> dict[str, Any]:
    return {
        op.outputs[0]: op.attributes["value"]
        for op in graph.operators
        if op.type == "Constant" and hasattr(op.attributes.get("value"), "shape")
    }


def _dynamic_quantized(op: Operator) -> Iterator[OnnxFault]:
    if op.type == "DynamicQuantizeLSTM":
        text = (
            "ONNX Runtime quantizes what all sequences of a batch and all of a thread's share hold"
            " in one step: other numbers of threads, or other sequences in the batch, give a"
            " sequence other outputs (0.11 and 0.21 apart in ddddocr 1.6.1)"
        )
        at = op.native
        yield _fault("batch_changes_steps", "wrong", "onnxruntime", at, op.outputs[0], text)


def _forgotten_states(graph: Graph) -> Iterator[OnnxFault]:
    """Yields a layer of one step from zeros with an unread final state: it has no memory."""
    for node in graph.nodes:
        if node.op == "Rnn" and _begins_with_zeros(graph, node) and node.origin:
            x, ends = graph.types.get(node.inputs[0]), node.outputs[1:]
            if x is None or x.counts[:1] != (1,) or any(map(graph.is_read, ends)):
                continue
            text = (
                "runs one step from zeros in each call, and hands no state on: what it was trained"
                " to remember is lost between frames, and its recurrent weights are never used;"
                " export it with its states as inputs and outputs, or for whole clips"
            )
            at = node.origin[0]
            yield _fault("states_forgotten", "wrong", "file", at, node.inputs[0], text)


def _states_of_one_batch(graph: Graph) -> Iterator[OnnxFault]:
    """PyTorch's exporters write a state that a model makes, torch.zeros(1, 8, O), as it was."""
    for node in graph.nodes:
        if node.op != "Rnn" or not node.origin or not _has_open_batch(graph, node):
            continue
        batches = [_batch_held(graph, name) for name in node.inputs[1:3] if name]
        for batch in [*filter(None, batches)][:1]:
            text = (
                f"begins with a state of {batch} sequences, and its input may have any number: it"
                f" runs with {batch} and no other; make the state of x.size(0) of them, or hand it"
                " in, and export again"
            )
            at = node.origin[0]
            yield _fault("states_of_one_batch", "refuses", "file", at, node.inputs[1], text)


def _has_open_batch(graph: Graph, node: Node) -> bool:
    """Returns whether a recurrent layer's input may have any number of sequences, as the file
    declares.
    """
    x, axis = node.inputs[0], 1
    if unpadded := graph.producer(x, "SequenceUnpad"):
        x, axis = unpadded.inputs[0], 1 if unpadded.attrs.time_major else 0
    result = graph.types.get(x)
    return result is not None and result.rank == 3 and result.counts[axis] is None


def _lengths_of_one_batch(graph: Graph, held: Subgraph, op: Operator) -> Iterator[OnnxFault]:
    """Lengths of an example that an exporter wrote as a constant."""
    name = op.inputs[4] if op.type in _RECURRENT and len(op.inputs) > 4 else ""
    lengths = {**_made_constants(held), **held.constants}.get(name)
    if lengths is None or all(None not in (v.shape or (None,))[:2] for v in held.inputs):
        return
    text = (
        f"sequence_lens {name!r} is a constant, {lengths.reshape(-1)[:4].tolist()}: it runs with"
        f" {lengths.size} sequences and no other, and reads no more steps of them; make the lengths"
        " an input, and export again"
    )
    yield _fault("lengths_of_one_batch", "refuses", "file", op.native, op.outputs[0], text)


def _layout(op: Operator) -> Iterator[OnnxFault]:
    if op.type in _RECURRENT and op.attributes.get("layout", 0) == 1:
        text = (
            "has layout=1 (batch first), which ONNX Runtime refuses on a CPU: write layout=0, with"
            " a Transpose before and after the operator"
        )
        yield _fault("layout_refused", "refuses", "onnxruntime", op.native, op.outputs[0], text)


def _unread_lengths(model: Model) -> Iterator[OnnxFault]:
    """Paddle2ONNX keeps the input of lengths, and leaves it out of the recurrent operator.

    Lengths that only later operators read, such as the choice of the last step, are right for
    layers that run forward.
    """
    layers = [op for _, op in model.graph.everywhere() if op.type in _RECURRENT]
    backward = any(op.attributes.get("direction", "forward") != "forward" for op in layers)
    for value in model.graph.inputs if layers else ():
        counts = value.dtype in ("int32", "int64") and len(value.shape or ()) == 1
        readers = _list_dependents(model.graph, value.name) if counts else []
        if not counts or any(op.type in (*_RECURRENT, "Loop", "Scan") for op in readers):
            continue
        if not readers or (backward and "len" in value.name.lower()):
            text = (
                f"no recurrent operator reads the lengths {value.name!r}: padding is read as steps,"
                " and a backward direction begins in it; give them to the operators as"
                " sequence_lens, or export again with a converter that does"
            )
            at = NativeOp(0, "file")
            yield _fault("lengths_unread", "wrong", "file", at, value.name, text)


def _list_dependents(graph: Subgraph, name: str) -> list[Operator]:
    """Returns the operators that depend on a value, those in bodies included."""
    names, readers = {name}, list[Operator]()
    for _, op in graph.everywhere():
        if not names.isdisjoint(NativeGraph([op.node]).reads[0]):
            names.update(filter(None, op.outputs))
            readers.append(op)
    return readers


def _returned_states(graph: Graph) -> Iterator[OnnxFault]:
    """Yields an output that is the state that a layer began with: each call begins where the first
    did.
    """
    inputs = {value.name for value in graph.inputs}
    layers = [node for node in graph.nodes if node.op == "Rnn" and node.origin]
    begun = {
        _find_source(graph, name): node for node in layers for name in node.inputs[1:3] if name
    }
    for output in graph.outputs:
        name = _find_source(graph, output.name)
        if name in inputs and name in begun:
            text = (
                f"the output {output.name!r} is the input {name!r}, the state that the layer begins"
                " with: each call begins where the first one did; return the layer's final state,"
                " and export again"
            )
            at = begun[name].origin[0]
            yield _fault("state_returned", "wrong", "file", at, output.name, text)


def _find_source(graph: Graph, name: str) -> str:
    """Returns the value that this one is a view or a copy of, a split one joined again included."""
    while node := graph.producer(name):
        parts = {graph.producer(each, "Split") for each in node.inputs}
        if node.op == "Concat" and len(parts) == 1 and (split := parts.pop()) is not None:
            if split.outputs != node.inputs or split.attrs.axis != node.attrs.axis:
                break
            name = split.inputs[0]
        elif node.op in ("Cast", "Split") or node.op == "Identity" or is_view(node.op):
            name = node.inputs[0]
        else:
            break
    return name


def _batch_held(graph: Graph, state: str) -> int:
    """Returns how many sentences a constant state (L, D, N, O) is for, 0 where it fits any
    number.
    """
    expands = False
    while (made := graph.producer(state)) and (
        made.op == "Unsqueeze" or made.op in ("Expand", "Reshape")
    ):
        state, expands = made.inputs[0], expands or made.op == "Expand"
    array = graph.constants.get(state)
    if array is None or array.ndim < 3 or (expands and array.shape[-2] == 1):
        return 0
    return int(array.shape[-2])


def _begins_with_zeros(graph: Graph, node: Node) -> bool:
    states = [graph.constants.get(name) for name in node.inputs[1:] if name]
    return all(state is not None and not state.any() for state in states)


def _fault(
    name: str,
    effect: Effect,
    path: str,
    at: NativeOp,
    value: str,
    text: str,
    change: Any = None,
) -> OnnxFault:
    change = change or keep_unchanged
    return FrameworkFault(name, text, change, effect, (path,), at, value, occurs=_always)


def _always(_: Values) -> bool:
    return True
