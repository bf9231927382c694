"""InferenceSession of the ONNX adapter, used as ONNX Runtime documents its own."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper
from support import onnx_models
from support.onnx_models import parameters, parsed, quiet

from onernn import plugins_disabled
from onernn.adapters.onnx import InferenceSession

pytestmark = pytest.mark.usefixtures("built")
THEIRS = onnxruntime.InferenceSession
ON_CPU = ["CPUExecutionProvider"]


def model() -> onnx.ModelProto:
    """A table, an LSTM with lengths and a product whose matrix callers may override."""
    rng = np.random.default_rng(0)
    shapes = {"table": (2000, 6), "W": (2, 32, 6), "R": (2, 32, 8), "B": (2, 64), "M": (8, 3)}
    made = parsed(
        """(int64[T, N] ids, int32[N] n, float[8, 3] M) => (float[2, N, 3] scores, float[] y) {
        x = Gather (table, ids)
        [encoder] y, h = LSTM <hidden_size = 8, direction = "bidirectional"> (x, W, R, B, n)
        scores = MatMul (h, M)
        }""",
        {name: rng.uniform(-0.5, 0.5, shape).astype("f4") for name, shape in shapes.items()},
    )
    made.graph.name, made.graph.doc_string = "tagger", "the graph"
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


WHOLE = pytest.mark.parametrize("whole", [False, True], ids=["inside", "whole"])


def ours(source: Any, *given: Any, whole: bool = False, **more: Any) -> Any:
    session = InferenceSession(source, *given, whole=whole, **more)
    assert session.whole == whole
    assert [line.split(":")[0] for line in session.replaced] == ["node 'encoder' (LSTM)"]
    return session


def assert_equal(got: Any, want: Any) -> None:
    onnx_models.assert_equal(got, want)
    assert all(np.abs(each).max() > 0.05 for each in want)


def test_it_takes_what_onnx_runtimes_takes() -> None:
    want = inspect.signature(THEIRS.__init__).parameters
    got = inspect.signature(InferenceSession.__init__).parameters
    assert set(got) - set(want) == {"dtype", "backend", "whole", "more"}
    named = [name for name in want if want[name].kind is not inspect.Parameter.VAR_KEYWORD]
    assert list(got)[: len(named)] == named
    assert [got[name].default for name in named] == [want[name].default for name in named]
    assert issubclass(InferenceSession, THEIRS)
    own = {name for name, value in vars(InferenceSession).items() if callable(value)}
    public = {name for name in own if not name.startswith("_")}
    assert public == {"run", "run_with_ort_values", "get_outputs", "set_providers", "explain"}
    for name in public - {"explain"}:  # the rest is inherited
        assert list(inspect.signature(getattr(InferenceSession, name)).parameters) == list(
            inspect.signature(getattr(THEIRS, name)).parameters
        )


@WHOLE
def test_a_model_tells_and_runs_what_it_does_in_onnx_runtime(file: Path, whole: bool) -> None:
    """Its inputs, outputs and providers are in test_whole_models.py."""
    mine, theirs = ours(file, whole=whole), THEIRS(file)
    metadata = [s.get_modelmeta() for s in (mine, theirs)]
    for field in (name for name in dir(metadata[1]) if not name.startswith("_")):
        assert getattr(metadata[0], field) == getattr(metadata[1], field)
    feed = {name: array.tolist() for name, array in FEED.items()} | {"M": np.ones((8, 3), "f4")}
    for names in (None, ["y", "scores"]):
        assert_equal(mine.run(names, feed), theirs.run(names, feed))


@WHOLE
def test_open_sizes_of_outputs_are_none_as_in_onnx_runtime(whole: bool) -> None:
    proto = onnx_models.gru_layer(hidden=8)
    session = InferenceSession(proto.SerializeToString(), quiet(), ON_CPU, whole=whole)
    (mine,), (theirs,) = session.get_outputs(), onnx_models.session_of(proto).get_outputs()
    assert session.replaced and mine.shape == theirs.shape == [None, 1, None, 8]


def _errors(file: Path) -> Iterator[tuple[str, Any]]:
    (file.parent / "text.onnx").write_text("no model")
    yield "no file", lambda kind: kind(str(file.parent / "absent.onnx"))
    yield "no model", lambda kind: kind(file.parent / "text.onnx")
    yield "no bytes", lambda kind: kind(b"no model")
    yield "no source", lambda kind: kind(5)
    yield "no provider", lambda kind: kind(file, providers=[5], enable_fallback=0)
    for what, names, feed in (
        ("no input", None, {"ids": FEED["ids"]}),
        ("input too many", None, {**FEED, "z": FEED["n"]}),
        ("other rank", None, {**FEED, "ids": FEED["ids"][0]}),
        ("other dtype", None, {**FEED, "n": np.ones(4)}),
        ("no output", ["z"], FEED),
    ):
        yield what, lambda kind, names=names, feed=feed: kind(file).run(names, feed)
    layer = "GRU <hidden_size: int = @units>"
    outside = parsed(
        f"(float[T, N, 8] x) => (y) {{ y = {layer} (x, W, R) }}", parameters("GRU", 8, 8)
    )
    yield "a function's attribute", lambda kind: kind(outside.SerializeToString())
    apart = save_apart(file.parent / "apart.onnx")
    (file.parent / "m.data").unlink()
    yield "no data beside it", lambda kind: kind(apart)


def save_apart(file: Path) -> Path:
    """A model whose numbers are all in a file m.data beside it."""
    onnx.save(model(), file, save_as_external_data=True, location="m.data", size_threshold=0)
    return file


@pytest.mark.parametrize("whole", [False, None], ids=["inside", "chosen"])
def test_errors_are_onnx_runtimes(file: Path, whole: Any) -> None:
    assert InferenceSession(file, whole=whole).whole == (whole is None)
    for what, call in _errors(file):
        with pytest.raises(Exception) as theirs:  # noqa: PT011
            call(THEIRS)
        with pytest.raises(Exception) as mine:  # noqa: PT011
            call(partial(InferenceSession, whole=whole))
        assert type(mine.value) is type(theirs.value), what
        assert str(mine.value) == str(theirs.value), what


@WHOLE
def test_providers_that_are_set_anew_are_the_sessions(file: Path, whole: bool) -> None:
    available = onnxruntime.get_available_providers()
    session = ours(file, providers=available, whole=whole)
    assert session.get_providers() == available
    session.set_providers(ON_CPU)
    assert session.replaced and session.get_providers() == ON_CPU and session.whole == whole
    assert_equal(session.run(None, FEED), THEIRS(file).run(None, FEED))


def test_an_optimized_file_holds_no_node_of_ours_which_is_one_warning(
    file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = quiet(optimized_model_filepath=str(tmp_path / "optimized.onnx"))
    session = InferenceSession(file, options)
    (record,) = [each for each in caplog.records if each.levelname == "WARNING"]
    assert session.refusals[0].reason in record.getMessage()
    assert not session.replaced and not session.whole
    assert "optimized_model_filepath" in session.explain()
    assert_equal(THEIRS(tmp_path / "optimized.onnx").run(None, FEED), session.run(None, FEED))


OTHER = {
    each.name: numpy_helper.to_array(each)[::-1].copy() * np.float32(2)
    for each in model().graph.initializer
}
"""Other numbers for the initializers of `model`."""


@pytest.mark.parametrize("providers", [["CUDAExecutionProvider", "CPUExecutionProvider"], None])
def test_providers_that_are_not_there_change_nothing(file: Path, providers: Any) -> None:
    """The line that scripts for any machine have; ONNX Runtime warns of it, and runs on the CPU."""
    assert "CUDAExecutionProvider" not in onnxruntime.get_available_providers()
    session = InferenceSession(file, quiet(), providers)
    assert session.replaced and not session.refusals
    assert session.get_providers() == ["CPUExecutionProvider"]


def assert_brought(source: Any, options: Any, feed: Any = FEED) -> Any:
    """What options bring decides, as it does in ONNX Runtime's own session."""
    session = InferenceSession(source, options)
    want = THEIRS(source, options).run(None, feed)
    assert_equal(session.run(None, feed), want)
    assert not session.replaced and "stays with ONNX Runtime: " in session.explain()
    return session


@pytest.fixture
def apart(tmp_path: Path) -> Path:
    (tmp_path / "apart").mkdir()
    return save_apart(tmp_path / "apart" / "m.onnx")


def value_of(array: np.ndarray) -> Any:
    return onnxruntime.OrtValue.ortvalue_from_numpy(array)


FOLDER = "session.model_external_initializers_file_folder_path"
BROUGHT: dict[str, Any] = {
    **{
        name: lambda o, v, *_, name=name: o.add_initializer(name, v)
        for name in ("W", "R", "B", "table")
    },
    "external": lambda o, v, *_: o.add_external_initializers(["R"], [v]),
    "in memory": lambda o, _, __, content: o.add_external_initializers_from_files_in_memory(
        ["m.data"], [content], [len(content)]
    ),
    "folder": lambda o, _, file, __: o.add_session_config_entry(FOLDER, str(file.parent)),
    "providers": lambda o, *_: o.add_provider("CPUExecutionProvider", {}),
}
"""What options may bring: of themselves, another value of R, and a file of other numbers."""


@pytest.fixture
def other_file(apart: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In the working directory, under the name of a file beside a model, half of its numbers."""
    numbers = np.frombuffer((apart.parent / "m.data").read_bytes(), "f4")[::-1] * np.float32(0.5)
    (tmp_path / "m.data").write_bytes(numbers.astype("f4").tobytes())
    monkeypatch.chdir(tmp_path)
    return tmp_path / "m.data"


@pytest.mark.parametrize("as_bytes", [False, True], ids=["path", "bytes"])
@pytest.mark.parametrize("what", BROUGHT)
def test_what_options_bring_is_used(
    what: str, file: Path, apart: Path, other_file: Path, as_bytes: bool
) -> None:
    options, value = quiet(), value_of(OTHER.get(what, OTHER["R"]))
    content = other_file.read_bytes()  # ONNX Runtime reads it later, and does not keep it
    BROUGHT[what](options, value, other_file, content)
    if what == "in memory" and as_bytes:  # also where no file has this name
        other_file.unlink()
    source: Any = file if what in OTHER or what == "providers" else apart
    source = source.read_bytes() if as_bytes else source
    session, want = assert_brought(source, options), THEIRS(source, options).run(None, FEED)
    if what == "R":
        session.set_providers(ON_CPU)
        assert_equal(session.run(None, FEED), want)
    plain = THEIRS(model().SerializeToString()).run(["y"], FEED)[0]
    assert (np.abs(want[1] - plain).max() > 0.01) == (what != "providers")


def test_files_beside_a_model_and_in_the_working_directory(apart: Path, other_file: Path) -> None:
    """Paths read the former, bytes the latter, with options and without, and again and again."""
    seen = []
    for source in (apart, apart.read_bytes()):
        want = THEIRS(source).run(None, FEED)
        for options in (None, quiet()):
            session = ours(source, options)
            assert_equal(session.run(None, FEED), want)
            session.set_providers(ON_CPU)
            assert_equal(session.run(None, FEED), want)
            assert len(session._model_bytes) < 2000 * 6 * 4  # the table is not in it
        seen.append(want[1])
    assert np.abs(seen[0] - seen[1]).max() > 0.01


def test_an_initializer_of_a_body_that_options_bring_is_used() -> None:
    inner = model()
    inner.graph.node.add().CopyFrom(helper.make_node("Identity", ["scores"], ["chosen"]))
    inner.graph.output[0].name = "chosen"
    del inner.graph.input[:], inner.graph.output[1:]
    made = parsed("(bool yes, int64[T, N] ids, int32[N] n) => (z) { z = If (yes) }")
    made.graph.node[0].attribute.extend(
        helper.make_attribute(f"{name}_branch", inner.graph) for name in ("then", "else")
    )
    source, options = made.SerializeToString(), quiet()
    value = value_of(OTHER["R"])
    options.add_initializer("R", value)
    feed = {**FEED, "yes": np.array(True)}
    plain = THEIRS(source).run(None, feed)[0]
    assert np.abs(THEIRS(source, options).run(None, feed)[0] - plain).max() > 0.001
    assert_brought(source, options, feed)


def test_options_stay_as_they_are_and_nothing_warns(
    apart: Path, file: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    options = onnxruntime.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "profile")
    for source in (apart, file, apart, apart.read_bytes()):
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(apart.parent)
            session = ours(source, options)
        names = {Path(session.end_profiling())}
        assert {*tmp_path.glob("profile*")} == names
        names.pop().unlink()
    assert THEIRS(file, options).end_profiling()
    warnings = [line for line in capfd.readouterr().err.splitlines() if ":onnxruntime:" in line]
    assert all("appears in graph inputs" in line for line in warnings)  # of the model
    for entry in ("session.model_external_initializers_file_folder_path", "onernn.ops"):
        with pytest.raises(RuntimeError, match=entry):
            options.get_session_config_entry(entry)
    foreign = onnx.load_from_string(session._model_bytes).SerializeToString()
    with pytest.raises(Exception, match="onernn"):  # our operators are not in them
        THEIRS(foreign, options)


@pytest.mark.parametrize("fixed", [True, False])
def test_all_that_options_say_reaches_the_session(file: Path, fixed: bool) -> None:
    """A size that options fix is one of ONNX Runtime's session."""
    options = quiet(
        intra_op_num_threads=1, inter_op_num_threads=2, enable_mem_pattern=False,
        enable_cpu_mem_arena=False, enable_mem_reuse=False, logid="mine", log_verbosity_level=1,
        execution_mode=onnxruntime.ExecutionMode.ORT_PARALLEL, use_deterministic_compute=True,
        execution_order=onnxruntime.ExecutionOrder.PRIORITY_BASED,
        graph_optimization_level=onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    )  # fmt: skip
    options.add_session_config_entry("session.disable_prepacking", "1")
    if fixed:
        options.add_free_dimension_override_by_name("T", 7)
    value = value_of(OTHER["R"])
    options.add_initializer("of another model", value)
    mine, theirs = InferenceSession(file, options), THEIRS(file, options)
    assert mine.whole != fixed and mine.replaced
    assert [each.shape for each in mine.get_inputs()] == [
        each.shape for each in theirs.get_inputs()
    ]
    assert mine.get_inputs()[0].shape == [7 if fixed else "T", "N"]
    got, want = mine.get_session_options(), theirs.get_session_options()
    fields = [n for n, v in vars(type(options)).items() if isinstance(v, property)]
    assert len(fields) > 12
    for field in fields:
        assert getattr(got, field) == getattr(want, field), field
    assert got.get_session_config_entry("session.disable_prepacking") == "1"


def test_plugins_that_are_disabled_replace_nothing(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with plugins_disabled(), plugins_disabled():
        session = InferenceSession(file)
    assert not session.replaced and "plug-ins are disabled" in session.explain()
    assert_equal(session.run(None, FEED), THEIRS(file).run(None, FEED))
    assert ours(file).replaced
    monkeypatch.setenv("ONERNN_DISABLE_PLUGINS", "1")
    assert not InferenceSession(file).replaced
    monkeypatch.setenv("ONERNN_DISABLE_PLUGINS", "0")
    assert ours(file).replaced


@WHOLE
def test_what_is_replaced_is_logged(
    file: Path, caplog: pytest.LogCaptureFixture, whole: bool
) -> None:
    with caplog.at_level(logging.INFO, "onernn"):
        session = ours(file, whole=whole)
    assert [each.getMessage() for each in caplog.records] == session.explain().splitlines()
