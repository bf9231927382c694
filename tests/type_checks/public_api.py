"""What type checkers say about programs that use onernn: `make check` runs mypy and Pyright on it.

Nothing here runs. A line with a mistake names the error of each checker. If a checker no longer
finds the mistake, its comment is unused, which is an error.
"""

from pathlib import Path
from typing import Any, assert_type

import numpy as np

import onernn
from onernn import backend, scoring
from onernn.adapters import mxnet, onnx, paddle, torch
from onernn.engine import emit
from onernn.ir.arrays import Array


def use(model: onernn.Graph, batch: onernn.Ragged, array: Array, module: Any) -> None:
    """Right programs: each result has its type, and none is Any."""
    assert_type(onernn.load("model.onnx", inputs={"x": (1, 80)}), onernn.Graph)
    assert_type(onernn.fuse(model).model, onernn.Graph)
    session = onernn.Session(model, dtype="bf16", threads=2, max_bytes=10**9)
    assert_type(session, onernn.Session)
    assert_type(session.run({"x": batch}), dict[str, onernn.Ragged | Array])
    assert_type(session.streams(8, {"h": "next"}).open(), int)
    assert_type(session.explain(), str)
    report = onernn.verify(model, "io.npz", atol=1e-4, threads=1, backend="kernels")
    assert_type(report, onernn.Report)
    assert_type(report.passed, bool)
    assert_type(onernn.repair(report, "fixed.onnx").refused, str)
    assert_type(onernn.audit("model.pdmodel").passed, bool)
    assert_type(onernn.convert(model, "m.onnx", opset=17), onernn.Report | None)
    assert_type(onernn.compile_model(model, "m.onernn", states={"h": "next"}), list[str])
    assert_type(onernn.quantize(model, ["io.npz"], budget="labels 0.1%").model, onernn.Graph)
    assert_type(onernn.join(model, model), onernn.Graph)
    assert_type(onernn.over_time(model, {"h": "next"}), onernn.Graph)
    weights = onernn.read_weights("model.safetensors")
    assert_type(onernn.read_layer(weights, "torch", nonlinearity="relu").spec, onernn.RnnSpec)
    onernn.convert_weights(weights, "onnx", source="keras", reset_after=True)
    assert_type(onernn.Ragged.from_lengths(array, [3, 1]), onernn.Ragged)
    spec = onernn.RnnSpec(onernn.Cell.GRU, 2, 3, direction="bidirectional_concat")
    layer = backend.open_backend("kernels").prepare(spec, onernn.RnnWeights(None, array))
    assert_type(layer, backend.Stack)
    assert_type(emit.write_cpp(model, "cpp", embed=True), list[Path])
    assert_type(scoring.score(model, "in", "out", dtype="bf16").rows, int)
    scoring.Scorer(model, threads=1, keep=["id"])
    with onernn.share(session) as shared, onernn.plugins_disabled():
        assert_type(shared.open(), onernn.Session)
    onernn.recording.save("io.npz", {"x": np.zeros((1, 2))})
    assert_type(onernn.__version__, str)
    torch.optimize(module, dtype="int8-dynamic", frozen=True, level="O1")
    assert_type(torch.explain(module), str)
    mxnet.optimize(module, dtype="bf16", semantics="documented")
    paddle.optimize(module, backend="kernels", threads=1)
    assert_type(onnx.plug("in.onnx", "out.onnx").replaced, tuple[str, ...])


def misuse(model: onernn.Graph, array: Array, module: Any) -> None:
    """Misspelled options, values of a wrong type, misspelled names."""
    onernn.Session(model, dtyp="f32")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    onernn.load("m.onnx", parms="p")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    onernn.convert(model, "m.onnx", opst=17)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    onernn.verify(model, "io.npz", atoll=1e-4)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    onernn.verify(model, "io.npz", bakend="kernels")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    onernn.repair(model, "m.onnx", agains=model)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    onernn.audit("m.pdmodel", parms="p")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    onernn.quantize(model, [], budgt="labels 0.1%")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    onernn.compile_model(model, "m.onernn", state={})  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    onernn.over_time(model, {}, givn={})  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    onernn.fuse(model, pases=())  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    onernn.share(model, foldr=".")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    onernn.read_layer({}, "keras", reset_aftr=True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    onernn.convert_weights({}, "onnx", sorce="keras")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    onernn.read_weights(pth="w.npz")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    onernn.RnnSpec(onernn.Cell.GRU, 2, 3, layer=2)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    onernn.RnnWeights(None, array, biass=array)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    onernn.Ragged.from_padded(array, [1], time_majr=True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    onernn.Value("x", dtyp="float32")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    onernn.Node("Relu", ("x",), ("y",), attribute={})  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    onernn.Session(model).run({}, observ=None)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    onernn.Session(model).streams(8, stats={})  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    onernn.CompiledModel("m.onernn", thread=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    backend.open_backend("kernels", thread=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    emit.write_cpp(model, "cpp", embd=True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    scoring.score(model, "in", "out", dtyp="bf16")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    scoring.Scorer(model, thread=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    torch.optimize(module, frozn=True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    mxnet.optimize(module, dtyp="bf16")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    paddle.optimize(module, thread=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    onnx.plug("m.onnx", "n.onnx", dtyp="bf16")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    onernn.Session(model, threads="2")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    onernn.RnnSpec("gru", 2, 3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    onernn.RnnSpec(onernn.Cell.GRU, 2, 3, direction="both")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    onernn.verify(model, "io.npz", atol="1e-4")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    onernn.Sesion(model)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    onernn.Session(model).rum({})  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    print(onernn.verify(model).pased)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    backend.open_bakend()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    torch.optimise(module)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
