"""Finds known faults: errors that exporters wrote into ONNX files, and errors of ONNX Runtime.

The faults occur in deployed files and in files that PyTorch's exporters write: see design/0018.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from onernn.adapters.common.fault import Effect, FaultyModel, FrameworkFault, keep_unchanged
from onernn.adapters.onnx.lower import lower, read_caller_rules
from onernn.adapters.onnx.read import RECURRENT, Model, Operator, Subgraph, read_model
from onernn.fuse_passes.views import is_view
from onernn.ir.graph import UNSUPPORTED, Graph, NativeOp, Node

PATHS = {"file": "the file as it says, whoever runs it", "onnxruntime": "ONNX Runtime on a CPU"}

_FILES = {  # faults of published files, by their size and SHA-256
    (1280395, "1e0b195ad4806595ef4466f419d16fca7e4afcfc6669b8c0b5f76ea87547c769"): (
        "silero_vad_half.onnx of silero-vad 6.2.3 holds different weights from the other files: its"
        " probability of speech differs by up to 0.95 from theirs; use silero_vad.onnx"
    )
}

OnnxFault = FrameworkFault[Model]


def find_faults(path: str | Path, *, rules: Mapping[str, Any] | None = None) -> FaultyModel[Model]:
    """Returns the model in a file, together with the faults that were found in it."""
    model, read = read_model(path), partial(lower, rules=read_caller_rules(rules))
    graph = read(model)
    runs = not any(node.op == UNSUPPORTED for node in graph.nodes)
    finders = [_of_file(Path(path)), _forgotten_states(graph), _states_of_one_batch(graph)]
    finders += [_states_that_are_inputs(graph), _unread_lengths(model)]
    for result, op in model.graph.everywhere():
        finders += [_lengths_of_one_batch(result, op), _layout(op), _dynamic_quantized(op)]
        finders += [
            _projection(result, op),
            _reset_before(model, op, runs and result is model.graph),
        ]
    return FaultyModel("ONNX files and ONNX Runtime", model, read, PATHS, tuple(chain(*finders)))


def _of_file(path: Path) -> Iterator[OnnxFault]:
    size = path.stat().st_size
    if any(size == known for known, _ in _FILES):
        from hashlib import sha256  # slow: loads OpenSSL

        if text := _FILES.get((size, sha256(path.read_bytes()).hexdigest())):
            yield _fault("other_weights", "wrong", "file", NativeOp(0, "file"), path.name, text)


def _reset_before(model: Model, op: Operator, runs: bool) -> Iterator[OnnxFault]:
    """Yields a fault if a GRU from PyTorch's exporters applies the reset gate before the matrix
    product.

    torch.nn.GRU always applies it after the product, which is linear_before_reset=1 in ONNX. The
    TorchScript exporter always wrote that attribute. The torch.export exporter used onnxscript,
    which omitted the attribute before 0.7 (onnxscript#2852, pytorch#189225). The file does not name
    onnxscript's version, so this function examines the GRU itself.
    """
    wrong = op.type == "GRU" and not op.attributes.get("linear_before_reset", 0)
    if not wrong or not model.producer.startswith("pytorch"):
        return
    text = (
        f"{model.producer} wrote linear_before_reset=0; torch.nn.GRU computes 1, and the weights"
        " were trained for that: export again with onnxscript 0.7 or later, or set it to 1"
    )
    change = partial(_with_reset_after, position=op.position) if runs else keep_unchanged
    yield _fault("reset_before_product", "wrong", "file", op.native, op.outputs[0], text, change)


def _with_reset_after(model: Model, *, position: int) -> Model:
    operators = tuple(
        replace(op, attributes={**op.attributes, "linear_before_reset": 1})
        if op.position == position
        else op
        for op in model.graph.operators
    )
    return replace(model, graph=replace(model.graph, operators=operators))


def _projection(graph: Subgraph, op: Operator) -> Iterator[OnnxFault]:
    """Yields a fault if the weights of an LSTM do not fit its hidden_size.

    PyTorch's exporter writes such weights for an LSTM with proj_size.
    """
    hidden = op.attributes.get("hidden_size")
    if op.type != "LSTM" or not isinstance(hidden, int):
        return
    held = _constants_of(graph)
    for name, axis, per_unit in ((5, -1, 1), (6, -1, 1), (1, 1, 4), (2, 1, 4), (2, -1, 1)):
        array = held.get(op.inputs[name]) if name < len(op.inputs) else None
        if array is not None and array.ndim > 1 and array.shape[axis] != per_unit * hidden:
            text = (
                f"{op.inputs[name]} {array.shape} does not fit hidden_size={hidden}: an LSTM with"
                " proj_size, which ONNX's has not; ONNX Runtime refuses the file, and PyTorch's"
                " exporter left weights out of it: export the cell unrolled, or take PyTorch's file"
            )
            value = op.outputs[0]
            yield _fault("projection_cut", "refuses", "onnxruntime", op.native, value, text)
            return


def _constants_of(graph: Subgraph) -> dict[str, Any]:
    held = {
        op.outputs[0]: op.attributes["value"]
        for op in graph.operators
        if op.type == "Constant" and hasattr(op.attributes.get("value"), "shape")
    }
    return {**held, **graph.constants}


def _dynamic_quantized(op: Operator) -> Iterator[OnnxFault]:
    if op.type == "DynamicQuantizeLSTM":
        text = (
            "ONNX Runtime quantizes all sequences of a thread together: the outputs of a sequence"
            " depend on the number of threads and on the batch (by up to 0.11 and 0.21 in ddddocr"
            " 1.6.1)"
        )
        value = op.outputs[0]
        yield _fault("batch_changes_steps", "wrong", "onnxruntime", op.native, value, text)


def _forgotten_states(graph: Graph) -> Iterator[OnnxFault]:
    """Yields a fault for each layer that runs one step from an initial state of zeros, and whose
    final state no operator reads. Such a layer remembers nothing, and its recurrent weights have no
    effect.
    """
    for node in _layers(graph):
        states = [graph.constants.get(name) for name in node.inputs[1:] if name]
        if all(state is not None and not state.any() for state in states):
            x, ends = graph.types.get(node.inputs[0]), node.outputs[1:]
            if x is None or x.counts[:1] != (1,) or any(map(graph.is_read, ends)):
                continue
            text = (
                "runs one step from zeros in each call, and hands no state on: what it was trained"
                " to remember is lost between frames, and its recurrent weights are never used;"
                " export it with its states as inputs and outputs, or for whole clips"
            )
            yield _fault("states_forgotten", "wrong", "file", node.origin[0], node.inputs[0], text)


def _states_of_one_batch(graph: Graph) -> Iterator[OnnxFault]:
    """Yields a fault for each constant initial state that fixes the number of sequences, if the
    input may have any number of sequences.

    If a model's code creates the state, for example with torch.zeros(1, 8, O), PyTorch's exporters
    write the state as a constant.
    """
    for node in _layers(graph):
        if not _has_open_batch(graph, node):
            continue
        batches = [_batch_held(graph, name) for name in node.inputs[1:3] if name]
        for batch in [*filter(None, batches)][:1]:
            text = (
                f"begins with a state of {batch} sequences, and its input may have any number: it"
                f" runs with {batch} and no other; make the state of x.size(0) of them, or hand it"
                " in, and export again"
            )
            at, state = node.origin[0], node.inputs[1]
            yield _fault("states_of_one_batch", "refuses", "file", at, state, text)


def _has_open_batch(graph: Graph, node: Node) -> bool:
    """Returns whether the file declares that a recurrent layer's input may have any number of
    sequences.
    """
    x, axis = node.inputs[0], 1
    if unpadded := graph.producer(x, "SequenceUnpad"):
        x, axis = unpadded.inputs[0], 1 if unpadded.attrs.time_major else 0
    result = graph.types.get(x)
    return result is not None and result.rank == 3 and result.counts[axis] is None


def _lengths_of_one_batch(graph: Subgraph, op: Operator) -> Iterator[OnnxFault]:
    """Yields a fault if an operator's sequence lengths are a constant: an exporter wrote the
    lengths of its example input into the file.
    """
    name = op.inputs[4] if _is_recurrent(op) and len(op.inputs) > 4 else ""
    lengths = _constants_of(graph).get(name)
    if lengths is None or all(None not in (v.shape or (None,))[:2] for v in graph.inputs):
        return
    text = (
        f"sequence_lens {name!r} is a constant, {lengths.reshape(-1)[:4].tolist()}: it runs with"
        f" {lengths.size} sequences and no other, and reads no more steps of them; make the lengths"
        " an input, and export again"
    )
    yield _fault("lengths_of_one_batch", "refuses", "file", op.native, op.outputs[0], text)


def _layout(op: Operator) -> Iterator[OnnxFault]:
    if _is_recurrent(op) and op.attributes.get("layout", 0) == 1:
        text = (
            "has layout=1 (batch first), which ONNX Runtime refuses on a CPU: write layout=0, with"
            " a Transpose before and after the operator"
        )
        yield _fault("layout_refused", "refuses", "onnxruntime", op.native, op.outputs[0], text)


def _unread_lengths(model: Model) -> Iterator[OnnxFault]:
    """Yields a fault for each input of sequence lengths that no recurrent operator reads;
    Paddle2ONNX writes such inputs.

    If only later operators read the lengths, for example to choose the last step, the results of
    forward layers are correct.
    """
    layers = [op for _, op in model.graph.everywhere() if _is_recurrent(op)]
    backward = any(op.attributes.get("direction", "forward") != "forward" for op in layers)
    for value in model.graph.inputs if layers else ():
        counts = value.dtype in ("int32", "int64") and len(value.shape or ()) == 1
        readers = _list_dependents(model.graph, value.name) if counts else []
        if not counts or any(_is_recurrent(op) or op.type in ("Loop", "Scan") for op in readers):
            continue
        if not readers or (backward and "len" in value.name.lower()):
            text = (
                f"no recurrent operator reads the lengths {value.name!r}: padding is read as steps,"
                " and a backward direction begins in it; pass them to the operators as"
                " sequence_lens, or export again with a converter that does"
            )
            file = NativeOp(0, "file")
            yield _fault("lengths_unread", "wrong", "file", file, value.name, text)


def _list_dependents(graph: Subgraph, name: str) -> list[Operator]:
    names, readers = {name}, list[Operator]()
    for _, op in graph.everywhere():
        if not names.isdisjoint(op.node.all_reads):
            names.update(filter(None, op.outputs))
            readers.append(op)
    return readers


def _states_that_are_inputs(graph: Graph) -> Iterator[OnnxFault]:
    """Yields a fault for each model output that is a layer's initial state instead of its final
    state.
    """
    inputs = {value.name for value in graph.inputs}
    begun = {
        _find_source(graph, name): node
        for node in _layers(graph)
        for name in node.inputs[1:3]
        if name
    }
    for output in graph.outputs:
        name = _find_source(graph, output.name)
        if name in inputs and name in begun:
            text = (
                f"the output {output.name!r} is the input {name!r}, the state that the layer begins"
                " with: each call begins in the same state as the first one; return the layer's"
                " final state, and export again"
            )
            layer = begun[name].origin[0]
            yield _fault("state_returned", "wrong", "file", layer, output.name, text)


def _find_source(graph: Graph, name: str) -> str:
    """Returns the name of the value from which this value was copied, cast, reshaped or split.

    A Concat that joins all parts of a Split counts as a copy.
    """
    while node := graph.producer(name):
        parts = {graph.producer(each, "Split") for each in node.inputs}
        if node.op == "Concat" and len(parts) == 1 and (split := parts.pop()) is not None:
            if split.outputs != node.inputs or split.attrs.axis != node.attrs.axis:
                break
            name = split.inputs[0]
        elif node.op in ("Cast", "Split", "Identity") or is_view(node.op):
            name = node.inputs[0]
        else:
            break
    return name


def _batch_held(graph: Graph, state: str) -> int:
    """Returns the number of sequences N of a constant state (L, D, N, O); 0 if the state is not
    constant or fits any number.
    """
    expands = False
    while (made := graph.producer(state)) and made.op in ("Unsqueeze", "Expand", "Reshape"):
        state, expands = made.inputs[0], expands or made.op == "Expand"
    array = graph.constants.get(state)
    if array is None or array.ndim < 3 or (expands and array.shape[-2] == 1):
        return 0
    return int(array.shape[-2])


def _layers(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if node.op == "Rnn" and node.origin]


def _is_recurrent(op: Operator) -> bool:
    return op.type in (*RECURRENT, "DynamicQuantizeLSTM")


def _fault(
    name: str,
    effect: Effect,
    path: str,
    at: NativeOp,
    value: str,
    text: str,
    change: Any = keep_unchanged,
) -> OnnxFault:
    return FrameworkFault(name, text, change, effect, (path,), at, value, occurs=lambda _: True)
