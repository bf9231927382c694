"""ONNX Runtime: padded batches with sequence_lens, one operator per layer; whole models.

Modes: "onernn" is a model with onernn's layers inside. In "onernn drop-in", onernn runs the whole
model or only its layers, as the drop-in chooses. "onernn converted" is a file that onernn has
written.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.models import Model, in_turn
from benchmarks.tasks import GATES, Array, LeftOut, Numbers, Prepared, Takes, Task

PACKAGES = ("onnxruntime", "onnx")
MODES = {
    "": Takes("ragged dense stream onnx"),
    "onernn": Takes("onnx"),
    "onernn drop-in": Takes("onnx"),
    "onernn converted": Takes("converted"),
}
ORDER = {"lbr_gru": (0, 1, 2), "gru": (0, 1, 2), "lstm": (0, 3, 1, 2)}  # z r h; i o f c


def versions() -> dict[str, str]:
    import onnxruntime

    return {"onnxruntime": onnxruntime.__version__}


def prepare(task: Task | Model, mode: str) -> Prepared:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = task.threads, 1
    if isinstance(task, Model):
        return _whole(task, mode, options)
    numbers = Numbers(task)
    model = _model(task, numbers).SerializeToString()
    session = onnxruntime.InferenceSession(model, options, ["CPUExecutionProvider"])
    x = numbers.padded
    if task.kind == "stream":
        steps = [x[t : t + 1] for t in range(task.time)]
        first = {name: np.zeros((1, 1, task.hidden_size), np.float32) for name in _states(task)}

        def stream() -> list[Array]:
            state, ys = first, []
            for step in steps:
                y, *ends = session.run(None, {"x": step, **state})
                ys.append(y)
                state = dict(zip(first, ends, strict=True))
            return ys

        return Prepared(stream, lambda ys: numbers.unpadded(np.concatenate(ys)))
    feed = {"x": x}
    if task.kind == "ragged":
        feed["lengths"] = np.asarray(task.lengths, np.int32)
    return Prepared(lambda: session.run(["y"], feed)[0], numbers.unpadded)


def _whole(model: Model, mode: str, options: Any) -> Prepared:
    if mode == "onernn":
        from onernn.adapters.onnx import optimize

        session = optimize(model.path, threads=model.threads, session_options=options)
        return in_turn(model, lambda feed: session.run(None, feed), session.explain())
    if mode == "onernn drop-in":
        from onernn.adapters.onnx import InferenceSession as DropIn

        chosen = DropIn(model.path, options, ["CPUExecutionProvider"])
        return in_turn(model, lambda feed: chosen.run(None, feed), chosen.explain())
    from onnxruntime import InferenceSession

    if mode:
        return _converted(model, options)
    session = InferenceSession(model.path, options, ["CPUExecutionProvider"])
    return in_turn(model, lambda feed: session.run(None, feed))


def _converted(model: Model, options: Any) -> Prepared:
    from onnxruntime import InferenceSession

    from onernn import OnernnError, convert

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "written.onnx")
        try:
            convert(model.path, file)
        except OnernnError as error:
            raise LeftOut(" ".join(str(error).split())) from None
        session = InferenceSession(file, options, ["CPUExecutionProvider"])
    names = [each.name for each in session.get_outputs()]
    return in_turn(model, lambda feed: session.run(names, feed))


def _states(task: Task) -> tuple[str, ...]:
    return ("h", "c") if task.cell == "lstm" else ("h",)


def _model(task: Task, numbers: Numbers) -> Any:
    from onnx import TensorProto, helper, numpy_helper

    def value(name: str, shape: list[Any], kind: int = TensorProto.FLOAT) -> Any:
        return helper.make_tensor_value_info(name, kind, shape)

    order, width = ORDER[task.cell], task.hidden_size
    inputs = [value("x", [None, task.batch, task.input_size])]
    outputs = [value("y", [None, task.batch, width * task.directions])]
    lengths, states = "", _states(task)
    if task.kind == "ragged":
        lengths = "lengths"
        inputs.append(value(lengths, [task.batch], TensorProto.INT32))
    streams = task.kind == "stream"
    if streams:
        inputs += [value(s, [1, 1, width]) for s in states]
        outputs += [value(f"{s}_n", [1, 1, width]) for s in states]
    attributes: dict[str, Any] = {
        "hidden_size": width,
        "direction": "bidirectional" if task.bidirectional else "forward",
    }
    if task.cell != "lstm":
        attributes["linear_before_reset"] = int(task.cell == "lbr_gru")
    constants = {"flat": np.array([0, 0, -1])}
    nodes, before = [], "x"
    for layer in range(task.layers):
        sides = [numbers.rows(order, layer, d) for d in range(task.directions)]
        w, u, b_x, b_h = (np.stack(arrays) for arrays in zip(*sides, strict=True))
        arrays = {"w": w, "r": u, "b": np.concatenate([b_x, b_h], axis=1)}
        assert arrays["b"].shape[1] == 2 * GATES[task.cell] * width
        constants |= {f"{name}{layer}": array for name, array in arrays.items()}
        taken = [before, f"w{layer}", f"r{layer}", f"b{layer}", lengths, *(states * streams)]
        given = [f"tdnc{layer}", *((f"{s}_n" for s in states) if streams else ())]
        kind = "LSTM" if task.cell == "lstm" else "GRU"
        nodes.append(helper.make_node(kind, taken, given, **attributes))
        nodes.append(
            helper.make_node("Transpose", [f"tdnc{layer}"], [f"tndc{layer}"], perm=[0, 2, 1, 3])
        )
        before = "y" if layer == task.layers - 1 else f"y{layer}"
        nodes.append(helper.make_node("Reshape", [f"tndc{layer}", "flat"], [before]))
    made = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "stack", inputs, outputs, made)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)
