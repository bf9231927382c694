"""InferenceSession of the ONNX adapter, used as ONNX Runtime documents its own."""

from __future__ import annotations

import inspect
import json
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from onernn import UnsupportedError, plugins_disabled
from onernn.adapters.onnx import InferenceSession

pytestmark = pytest.mark.usefixtures("built")
THEIRS = onnxruntime.InferenceSession
ON_CPU = ["CPUExecutionProvider"]


def model() -> onnx.ModelProto:
    """A table, an LSTM with lengths and a product whose matrix callers may override."""
    rng = np.random.default_rng(0)
    shapes = {"table": (2000, 6), "W": (2, 32, 6), "R": (2, 32, 8), "B": (2, 64), "M": (8, 3)}
    constants = [
        numpy_helper.from_array(rng.uniform(-0.5, 0.5, shape).astype("f4"), name)
        for name, shape in shapes.items()
    ]
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["x"]),
        helper.make_node(
            "LSTM", ["x", "W", "R", "B", "n"], ["y", "h"],
            hidden_size=8, direction="bidirectional", name="encoder",
        ),
        helper.make_node("MatMul", ["h", "M"], ["scores"]),
    ]  # fmt: skip
    value = helper.make_tensor_value_info
    inputs = [
        value("ids", TensorProto.INT64, ["T", "N"]),
        value("n", TensorProto.INT32, ["N"]),
        value("M", TensorProto.FLOAT, [8, 3]),
    ]
    outputs = [value("scores", TensorProto.FLOAT, [2, "N", 3]), value("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "tagger", inputs, outputs, constants, "the graph")
    made = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    made.doc_string, made.producer_name = "the model", "by hand"
    helper.set_model_props(made, {"labels": "a,b"})
    return made


FEED = {
    "ids": np.random.default_rng(1).integers(0, 2000, (7, 4)),
    "n": np.array([7, 0, 3, 1], "i4"),
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    onnx.save(model(), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def ours(source: Any, *given: Any, **more: Any) -> Any:
    session = InferenceSession(source, *given, backend="kernels", **more)
    assert [line.split(":")[0] for line in session.replaced] == ["node 'encoder' (LSTM)"]
    return session


def assert_equal(got: Any, want: Any) -> None:
    assert len(got) == len(want)
    for mine, theirs in zip(got, want, strict=True):
        assert mine.dtype == theirs.dtype and mine.shape == theirs.shape
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-6 + 1e-5 * np.abs(theirs).max())
        assert np.abs(theirs).max() > 0.05


def test_it_takes_what_onnx_runtimes_takes() -> None:
    want = inspect.signature(THEIRS.__init__).parameters
    got = inspect.signature(InferenceSession.__init__).parameters
    assert set(got) - set(want) == {"dtype", "backend", "more"}
    named = [name for name in want if want[name].kind is not inspect.Parameter.VAR_KEYWORD]
    assert list(got)[: len(named)] == named
    assert [got[name].default for name in named] == [want[name].default for name in named]
    assert issubclass(InferenceSession, THEIRS)


def test_what_it_tells_of_a_model_is_what_onnx_runtime_tells(file: Path) -> None:
    mine, theirs = ours(file), THEIRS(file)
    for method in ("get_inputs", "get_outputs", "get_overridable_initializers"):
        told = [[(v.name, v.shape, v.type) for v in getattr(s, method)()] for s in (mine, theirs)]
        assert told[0] == told[1] and told[0]
    for field in (
        "producer_name", "graph_name", "domain", "description", "graph_description", "version",
        "custom_metadata_map",
    ):  # fmt: skip
        got, want = getattr(mine.get_modelmeta(), field), getattr(theirs.get_modelmeta(), field)
        assert got == want, field
    assert mine.get_providers() == theirs.get_providers()
    assert mine.get_provider_options() == theirs.get_provider_options()


@pytest.mark.parametrize("names", [None, [], ["y"], ["y", "scores"]])
def test_it_runs_by_names_of_outputs(file: Path, names: Any) -> None:
    assert_equal(ours(file).run(names, FEED), THEIRS(file).run(names, FEED))


def test_lists_are_inputs_and_an_initializer_may_be_given(file: Path) -> None:
    feed = {name: array.tolist() for name, array in FEED.items()}
    feed["M"] = np.ones((8, 3), "f4")
    assert_equal(ours(file).run(None, feed), THEIRS(file).run(None, feed))


def test_values_of_onnx_runtimes_and_bindings_are_inputs_and_outputs(file: Path) -> None:
    session, want = ours(file), THEIRS(file).run(["y"], FEED)
    values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(a) for name, a in FEED.items()}
    assert_equal([each.numpy() for each in session.run_with_ort_values(["y"], values)], want)
    binding = session.io_binding()
    for name, array in FEED.items():
        binding.bind_cpu_input(name, array)
    place = np.full(want[0].shape, np.nan, "f4")
    binding.bind_output("y", "cpu", 0, np.float32, place.shape, place.ctypes.data)
    session.run_with_iobinding(binding)
    assert_equal([place], want)


def test_it_runs_behind_the_callers_back(file: Path) -> None:
    done, told = threading.Event(), []

    def callback(results: Any, tag: str, error: str) -> None:
        told.append((results, tag, error))
        done.set()

    ours(file).run_async(None, FEED, callback, "tag")
    assert done.wait(600)
    ((results, tag, error),) = told
    assert (tag, error) == ("tag", "")
    assert_equal(results, THEIRS(file).run(None, FEED))


def test_the_profile_shows_our_operator_by_name_and_time(file: Path, tmp_path: Path) -> None:
    options = onnxruntime.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "profile")
    session = ours(file, options)
    session.run(None, FEED)
    events = json.loads(Path(session.end_profiling()).read_text())
    (event,) = (each for each in events if each["name"] == "encoder_kernel_time")
    assert event["args"]["op_name"] == "Layer" and event["dur"] >= 0


def test_providers_may_be_set_anew(file: Path) -> None:
    session, want = ours(file), THEIRS(file).run(None, FEED)
    session.set_providers(ON_CPU)
    assert session.get_providers() == ON_CPU and len(session.replaced) == 1
    assert_equal(session.run(None, FEED), want)


def _errors(file: Path) -> Iterator[tuple[str, Any]]:
    def made(kind: Any, source: Any, *given: Any, **more: Any) -> None:
        kind(source, *given, **more)

    (file.parent / "text.onnx").write_text("no model")
    yield "no file", lambda kind: made(kind, str(file.parent / "absent.onnx"))
    yield "no model", lambda kind: made(kind, file.parent / "text.onnx")
    yield "no bytes", lambda kind: made(kind, b"no model")
    yield "no source", lambda kind: made(kind, 5)
    yield "no provider", lambda kind: made(kind, file, providers=[5], enable_fallback=0)
    yield "no input", lambda kind: kind(file).run(None, {"ids": FEED["ids"]})
    yield "input too many", lambda kind: kind(file).run(None, {**FEED, "z": FEED["n"]})
    yield "other rank", lambda kind: kind(file).run(None, {**FEED, "ids": FEED["ids"][0]})
    yield "other dtype", lambda kind: kind(file).run(None, {**FEED, "n": np.ones(4)})
    yield "no output", lambda kind: kind(file).run(["z"], FEED)


def test_errors_are_onnx_runtimes(file: Path) -> None:
    for what, call in _errors(file):
        with pytest.raises(Exception) as theirs:  # noqa: PT011
            call(THEIRS)
        with pytest.raises(Exception) as mine:  # noqa: PT011
            call(InferenceSession)
        assert type(mine.value) is type(theirs.value), what
        assert str(mine.value) == str(theirs.value), what


def test_data_beside_a_model_stay_beside_it(tmp_path: Path) -> None:
    file, options = tmp_path / "m.onnx", onnxruntime.SessionOptions()
    onnx.save(model(), file, save_as_external_data=True, location="m.data", size_threshold=0)
    want = THEIRS(file).run(None, FEED)
    session = ours(file, options)
    assert_equal(session.run(None, FEED), want)
    session.set_providers(ON_CPU)
    assert_equal(session.run(None, FEED), want)
    assert len(session._model_bytes) < 2000 * 6 * 4  # the table is not in it
    kept = onnxruntime.SessionOptions()
    folder = "session.model_external_initializers_file_folder_path"
    kept.add_session_config_entry(folder, str(tmp_path))
    assert_equal(ours(file.read_bytes(), kept).run(None, FEED), want)
    assert options.get_session_config_entry(folder) == ""  # for other models


def test_numbers_that_cannot_be_read_leave_the_model_to_onnx_runtime(tmp_path: Path) -> None:
    file = tmp_path / "m.onnx"
    onnx.save(model(), file, save_as_external_data=True, location="m.data", size_threshold=0)
    (tmp_path / "m.data").unlink()
    with pytest.raises(Exception) as theirs:  # noqa: PT011
        THEIRS(file)
    with pytest.raises(type(theirs.value)) as mine:
        InferenceSession(file)
    assert str(mine.value) == str(theirs.value)


def test_an_optimized_file_holds_no_node_of_ours(file: Path, tmp_path: Path) -> None:
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.log_severity_level = 3
    session = InferenceSession(file, options, backend="kernels")
    assert not session.replaced and "optimized_model_filepath" in session.explain()
    assert_equal(THEIRS(tmp_path / "optimized.onnx").run(None, FEED), session.run(None, FEED))


def test_what_onnx_runtime_refuses_with_our_layers_it_runs_as_given(file: Path) -> None:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("onernn.operators", "said, but not registered")
    session = InferenceSession(file, options, backend="kernels")
    assert not session.replaced and "refuses the model with our layers" in session.explain()
    assert_equal(session.run(None, FEED), THEIRS(file).run(None, FEED))


def test_plugins_that_are_disabled_replace_nothing(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with plugins_disabled(), plugins_disabled():
        session = InferenceSession(file, backend="kernels")
    assert not session.replaced and "plug-ins are disabled" in session.explain()
    assert_equal(session.run(None, FEED), THEIRS(file).run(None, FEED))
    assert ours(file).replaced
    monkeypatch.setenv("ONERNN_DISABLE_PLUGINS", "1")
    assert not InferenceSession(file, backend="kernels").replaced
    monkeypatch.setenv("ONERNN_DISABLE_PLUGINS", "0")
    assert ours(file).replaced


def test_what_is_replaced_is_logged(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "onernn"):
        session = ours(file)
    assert [each.getMessage() for each in caplog.records] == session.explain().splitlines()


@pytest.mark.parametrize("options", [{"dtype": "f17"}, {"backend": "cuda"}])
def test_options_of_ours_that_are_unknown_are_refused(file: Path, options: Any) -> None:
    with pytest.raises(UnsupportedError, match="expected"):
        InferenceSession(file, **options)
