"""Models that the drop-in runs as one plan: the choice, and calls as in ONNX Runtime."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto
from support.interpreters import ends_of_children
from support.onnx_models import assert_equal, parameters, parsed, quiet, read, small

from onernn import ModelFormatError, UnsupportedError, plugins_disabled
from onernn.adapters.onnx import InferenceSession, whole
from onernn.fuse_passes import fuse

pytestmark = pytest.mark.usefixtures("built")
THEIRS = onnxruntime.InferenceSession
WAYS = pytest.mark.parametrize("way", [False, True], ids=["inside", "whole"])
LSTM = parameters("LSTM", 6, 8)
rng = np.random.default_rng(0)


def uniform(*shape: int) -> Any:
    return rng.uniform(-1, 1, shape).astype("f4")


# What is computed in three kinds of models: a table and lengths, states as outputs, branches.

TABLE = parsed(
    """(int64[T, N] ids, int32[N] n, float[2, 8] M) => (float[1, N, 2] scores, y, int64[?] size) {
    x = Gather (table, ids)  y, h = LSTM <hidden_size = 8> (x, W, R, B, n)
    scores = Gemm_ (h, M)  size = Shape (y)
    }""".replace("Gemm_ (h, M)", "MatMul (h, MT)  MT = Transpose <perm = [1, 0]> (M)"),
    {"table": uniform(50, 6), "M": uniform(2, 8), **LSTM},
)
FRAMES = parsed(
    """(float[1, 6] frame, float[1, 1, 8] h, float[1, 1, 8] c) => (float[1, 8] out, hn, cn) {
    x = Unsqueeze (frame, zero)  y, hn, cn = LSTM <hidden_size = 8> (x, W, R, B, , h, c)
    s = Squeeze (y, axes)  out = Tanh (s)
    }""",
    {"zero": np.array([0]), "axes": np.array([0, 1]), **LSTM},
)
BRANCHES = parsed(
    """(float[T, N, 6] x, int64 rate, bool[?] flags) => (y, bool[?] other) {
    fast = Equal (rate, sixteen)  other = Not (flags)
    y = If (fast) <
        then_branch = one () => (a) { a, _h = LSTM <hidden_size = 8> (x, W, R, B) },
        else_branch = two () => (b) { b0, _g = LSTM <hidden_size = 8> (x, W, R, B)  b = Neg (b0) }
    >
    }""",
    {"sixteen": np.array(16000), **LSTM},
)
IDS = {"ids": rng.integers(0, 50, (7, 4)), "n": np.array([7, 0, 3, 1], "i4")}
FRAME = {"frame": uniform(1, 6), "h": uniform(1, 1, 8), "c": uniform(1, 1, 8)}
BRANCH = {"x": uniform(5, 2, 6), "rate": np.array(16000), "flags": np.array([True, False])}
MODELS = {"table": (TABLE, IDS), "frames": (FRAMES, FRAME), "branches": (BRANCHES, BRANCH)}


def with_(feed: dict[str, Any], **other: Any) -> dict[str, Any]:
    return {name: array for name, array in {**feed, **other}.items() if array is not None}


def of_other_sizes(feed: dict[str, Any]) -> dict[str, Any]:
    """Each axis of every input is longer by one, also those that the model fixes."""
    return {k: np.pad(v, [(0, 1)] * v.ndim, mode="edge") for k, v in feed.items()}


def ended(_: Any) -> Any:
    options = onnxruntime.RunOptions()
    options.terminate = True
    return options


def tagged(_: Any) -> Any:
    options = onnxruntime.RunOptions()
    options.logid = "mine"
    return options


def bound(session: Any, feed: dict[str, Any]) -> Any:
    binding = session.io_binding()
    for name, array in feed.items():
        binding.bind_cpu_input(name, array)
    for value in session.get_outputs():
        binding.bind_output(value.name)
    session.run_with_iobinding(binding)
    return binding.copy_outputs_to_cpu()


def of_values(session: Any, feed: dict[str, Any]) -> Any:
    make = onnxruntime.OrtValue.ortvalue_from_numpy
    values = session.run_with_ort_values(None, {name: make(a) for name, a in feed.items()})
    assert all(type(each) is onnxruntime.OrtValue for each in values)
    return [each.numpy() for each in values]


def asynchronously(session: Any, feed: dict[str, Any]) -> Any:
    queue: SimpleQueue[Any] = SimpleQueue()
    session.run_async(None, feed, lambda *each: queue.put(each), None)
    outputs, _, error = queue.get(timeout=60)
    assert not error, error
    return outputs


Call = Callable[[Any, dict[str, Any]], Any]
CALLS: dict[str, Call] = {
    "all": lambda s, f: s.run(None, f),
    "no names": lambda s, f: s.run([], f),
    "names in turn": lambda s, f: s.run([v.name for v in s.get_outputs()][::-1], f),
    "a name twice": lambda s, f: s.run([s.get_outputs()[0].name] * 2, f),
    "names in a tuple": lambda s, f: s.run((s.get_outputs()[-1].name,), f),
    "an unknown name": lambda s, f: s.run(["nothing"], f),
    "an inner name": lambda s, f: s.run(["x"], f),
    "names in a text": lambda s, f: s.run("y", f),
    "lists": lambda s, f: s.run(None, {n: a.tolist() for n, a in f.items()}),
    "not contiguous": lambda s, f: s.run(None, {n: a[...].T.copy().T for n, a in f.items()}),
    "read-only": lambda s, f: s.run(None, {n: np.frombuffer(a.tobytes(), a.dtype).reshape(a.shape)
                                           for n, a in f.items()}),
    "other byte order": lambda s, f: s.run(
        None, {n: a.astype(a.dtype.newbyteorder(">")) for n, a in f.items()}
    ),
    "float64": lambda s, f: s.run(None, {n: a.astype("f8") for n, a in f.items()}),
    "float16": lambda s, f: s.run(None, {n: a.astype("f2") for n, a in f.items()}),
    "texts": lambda s, f: s.run(None, {n: a.astype("U") for n, a in f.items()}),
    "one axis more": lambda s, f: s.run(None, {n: a[None] for n, a in f.items()}),
    "other sizes": lambda s, f: s.run(None, of_other_sizes(f)),
    "no input": lambda s, f: s.run(None, {}),
    "one missing": lambda s, f: s.run(None, dict([*f.items()][1:])),
    "one unknown": lambda s, f: s.run(None, {**f, "nothing": np.zeros(2, "f4")}),
    "no dict": lambda s, f: s.run(None, [*f.values()]),
    "options": lambda s, f: s.run(None, f, tagged(s)),
    "options that end it": lambda s, f: s.run(None, f, ended(s)),
    "named arguments": lambda s, f: s.run(output_names=None, input_feed=f, run_options=None),
    "values": of_values,
    "values of other sizes": lambda s, f: of_values(s, of_other_sizes(f)),
    "binding": bound,
    "asynchronous": asynchronously,
}  # fmt: skip
OWN = {
    "another default": ("table", with_(IDS, M=uniform(2, 8))),
    "an index too large": ("table", with_(IDS, ids=IDS["ids"] + 50)),
    "a negative index": ("table", with_(IDS, ids=IDS["ids"] - 50)),
    "another branch": ("branches", with_(BRANCH, rate=np.array(8000))),
    "a number of NumPy": ("branches", with_(BRANCH, rate=np.int64(8000))),
}
"""Feeds of one model, besides those of all."""


def outcome(call: Call, session: Any, feed: dict[str, Any]) -> Any:
    """Returns outputs, or the class of an error and its text without addresses."""
    try:
        return call(session, feed)
    except Exception as error:
        return type(error), re.sub("0x[0-9a-f]+", "", str(error))


def assert_same(got: Any, want: Any) -> None:
    assert type(got) is type(want), (got, want)
    if isinstance(want, tuple):
        assert got == want
        return
    assert [(type(a), a.shape) for a in got] == [(type(a), a.shape) for a in want]
    assert_equal(got, want)


@pytest.fixture(scope="module", params=[False, True], ids=["inside", "whole"])
def sessions(request: pytest.FixtureRequest) -> dict[str, tuple[Any, Any]]:
    """Ours, for all calls one after the other, and ONNX Runtime's."""
    made = {}
    for name, (proto, _) in MODELS.items():
        source = proto.SerializeToString()
        mine = InferenceSession(source, quiet(), whole=request.param)
        assert mine.whole == request.param and mine.replaced
        made[name] = mine, THEIRS(source, quiet())
    return made


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("what", CALLS)
def test_calls_do_what_they_do_in_onnx_runtime(sessions: Any, what: str, model: str) -> None:
    mine, theirs = sessions[model]
    feed = MODELS[model][1]
    for _ in range(2):  # a call, right or wrong, leaves no trace in the next one
        assert_same(outcome(CALLS[what], mine, feed), outcome(CALLS[what], theirs, feed))
        assert_same(mine.run(None, feed), theirs.run(None, feed))


@pytest.mark.parametrize("what", OWN)
def test_feeds_do_what_they_do_in_onnx_runtime(sessions: Any, what: str) -> None:
    model, feed = OWN[what]
    mine, theirs = sessions[model]
    assert_same(outcome(CALLS["all"], mine, feed), outcome(CALLS["all"], theirs, feed))


@WAYS
@pytest.mark.parametrize("model", MODELS)
def test_metadata_are_onnx_runtimes(model: str, way: bool) -> None:
    source = MODELS[model][0].SerializeToString()
    mine, theirs = InferenceSession(source, quiet(), whole=way), THEIRS(source, quiet())
    for method in ("get_inputs", "get_outputs", "get_overridable_initializers"):
        values = [getattr(session, method)() for session in (mine, theirs)]
        told = [[(v.name, v.shape, v.type, str(v)) for v in each] for each in values]
        assert told[0] == told[1]
    for method in ("get_providers", "get_provider_options"):
        assert getattr(mine, method)() == getattr(theirs, method)()
    infos = [[str(i.name) for i in s.get_input_memory_infos()] for s in (mine, theirs)]
    assert infos[0] == infos[1]
    assert not hasattr(mine, "nothing")


def test_outputs_belong_to_the_caller() -> None:
    """Also those that are inputs or constants of the model."""
    proto = parsed(
        """(float[T, N, 6] x) => (y, same, fixed) {
        y, h = LSTM <hidden_size = 8> (x, W, R, B)  same = Identity (x)  fixed = Identity (three)
        }""",
        {"three": np.array([3.0], "f4"), **LSTM},
    )
    session, feed = InferenceSession(proto.SerializeToString(), whole=True), {"x": uniform(3, 2, 6)}
    first = session.run(None, feed)
    kept = [array.copy() for array in first]
    for array in first:
        array += 1
    assert_equal(session.run(None, feed), kept)
    assert np.array_equal(kept[1], feed["x"])


def test_threads_share_a_session() -> None:
    session = InferenceSession(TABLE.SerializeToString(), quiet(), whole=True)
    theirs = THEIRS(TABLE.SerializeToString(), quiet())
    feeds = [
        {"ids": rng.integers(0, 50, (steps, rows)), "n": rng.integers(0, steps + 1, rows, "i4")}
        for steps, rows in [(3, 2), (40, 5), (1, 1)] * 8
    ]
    calls = [CALLS["all"], CALLS["values"], CALLS["lists"]]  # the last one opens ONNX Runtime's
    pairs = [(calls[at % 3 if at > 9 else 0], feed) for at, feed in enumerate(feeds)]
    with ThreadPoolExecutor(4) as pool:
        results = pool.map(lambda pair: pair[0](session, pair[1]), pairs)
        for got, feed in zip(results, feeds, strict=True):
            assert_equal(got, theirs.run(None, feed))


def test_forked_children_run_a_session() -> None:
    session = InferenceSession(FRAMES.SerializeToString(), quiet(), whole=True)
    want = session.run(None, FRAME)

    def child() -> int:
        os._exit(not all(map(np.array_equal, session.run(None, FRAME), want)))

    assert ends_of_children(4, lambda seed: None, child) == ["0"] * 4


def test_onnx_runtime_loads_the_file_when_a_call_needs_it(tmp_path: Path) -> None:
    """Until then the file is not read again, and must be the one that was read."""
    file = tmp_path / "m.onnx"
    onnx.save(FRAMES, file)
    session = InferenceSession(file, quiet(), whole=True)
    want = THEIRS(file, quiet()).run(None, FRAME)
    file.unlink()
    assert_equal(session.run(None, FRAME), want)
    assert [v.name for v in session.get_outputs()] == ["out", "hn", "cn"]
    assert session.get_modelmeta().graph_name == "g"
    for call in (CALLS["binding"], CALLS["options"], lambda s, _: s.get_outputs()[0].shape):
        with pytest.raises(ModelFormatError) as caught:
            call(session, FRAME)
        assert str(file) in str(caught.value)
    onnx.save(FRAMES, file)  # of another time
    with pytest.raises(ModelFormatError):
        CALLS["binding"](session, FRAME)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "u8"])
def test_dtypes_and_threads_are_those_of_layers(dtype: str) -> None:
    session = InferenceSession(
        TABLE.SerializeToString(), quiet(intra_op_num_threads=2), dtype=dtype, whole=True
    )
    assert [f", {dtype}, " in line for line in session.replaced] == [True]
    want = THEIRS(TABLE.SerializeToString(), quiet()).run(None, IDS)
    assert np.abs(session.run(None, IDS)[1] - want[1]).max() < (1e-6 if dtype == "f32" else 0.03)


# The choice.

CONVOLUTION = """(float[1, {c}, 32, W] x) => (y) {{
    f = Conv <pads = [1, 1, 1, 1]> (x, K)  s = MaxPool <kernel_shape = [32, 1]> (f)
    q = Squeeze (s, two)  t = Transpose <perm = [2, 0, 1]> (q)
    y, h = LSTM <hidden_size = 8> (t, W0, R, B)
}}"""
"""An image of columns, which an LSTM reads."""


def columns(channels: int) -> onnx.ModelProto:
    constants = {"K": uniform(6, channels, 3, 3), "two": np.array([2]), "W0": LSTM["W"]}
    return parsed(CONVOLUTION.format(c=channels), {**constants, **small(LSTM, "R", "B")})


def layer(more: str, **constants: Any) -> onnx.ModelProto:
    text = "(float[T, N, 6] x) => (out) { y, h = LSTM <hidden_size = 8> (x, W, R, B) %s }"
    return parsed(text % more, {**LSTM, **constants})


CHOICES = {
    "layer": (layer("out = Relu (h)"), True, "operators in one call"),
    "1 channel": (columns(1), False, "convolutions over images"),
    "no layer": (parsed("(float[T] x) => (y) { y = Relu (x) }"), False, "no recurrent layer"),
    "half": (layer(f"q = Cast <to = {TensorProto.FLOAT16}> (h)  out = Relu (q)"), False, "float16"),
    "bytes": (layer("out, s, z = DynamicQuantizeLinear (h)"), False, "8 bits"),
    "steps": (
        layer(
            "out = Loop (three, , h) <body = b (int64 i, bool c, float[1, M, 8] a)"
            " => (bool d, float[1, M, 8] e) { d = Identity (c)  e = Sin (a) }>",
            three=np.array(3),
        ),
        False,
        "loop",
    ),
}


@pytest.mark.parametrize("name", CHOICES)
def test_the_rule_chooses_by_the_graph(name: str) -> None:
    proto, is_whole, why = CHOICES[name]
    session = InferenceSession(proto.SerializeToString(), quiet())
    assert session.whole == is_whole
    assert why in session.explain().splitlines()[0]
    assert InferenceSession(proto.SerializeToString(), quiet(), whole=False).whole is False


def test_convolutions_over_images_count_by_their_share() -> None:
    """The sum over 3 x 3 x C for 6 maps of 32 rows; 32 x (6 + 8 + 1) weights per column."""
    found = whole.choose(fuse(read(columns(2))).model)
    assert not found.is_whole and f"{6 * 32 * 18 / (32 * 15):.2g} times" in found.why
    rows = parsed(
        CONVOLUTION.format(c=1).replace("32", "2"), {
            "K": uniform(6, 1, 3, 3), "two": np.array([2]), "W0": LSTM["W"], **small(LSTM, "R", "B")
        },
    )  # fmt: skip
    found = whole.choose(fuse(read(rows)).model)
    assert found.is_whole and f"{6 * 2 * 9 / (32 * 15):.2g} times" in found.why


INSIDE = {
    "keras2_gru_linear": "loop",
    "onnxruntime_quantized_signed": "8 bits",
    "onnxruntime_quantized_unsigned": "8 bits",
}
"""Recorded models that ONNX Runtime runs, and why; all others run as one plan."""


def test_recorded_models_run_as_the_rule_says(data: Path) -> None:
    for file in sorted((data / "onnx").glob("*/model.onnx")):
        name = file.parent.name
        session, theirs = InferenceSession(file, quiet()), THEIRS(file, quiet())
        assert session.whole == (name not in INSIDE), session.explain()
        assert INSIDE.get(name, "one plan") in session.explain().splitlines()[0]
        with np.load(file.with_name("io.npz")) as recorded:
            feed = {value.name: recorded[f"in__{value.name}"] for value in session.get_inputs()}
        assert_same(session.run(None, feed), theirs.run(None, feed))
        told = [[(v.name, v.shape, v.type) for v in s.get_outputs()] for s in (session, theirs)]
        assert told[0] == told[1]


def test_a_plan_that_is_asked_for_runs_or_is_refused() -> None:
    for name, (proto, *_) in CHOICES.items():
        source, x = proto.SerializeToString(), {"x": uniform(4, 2, 6)}
        session = InferenceSession(source, quiet(), whole=True)
        assert session.whole
        if name in ("layer", "steps", "half"):
            assert_same(session.run(None, x), THEIRS(source, quiet()).run(None, x))
    strange = layer("out = Det (h)").SerializeToString()
    with pytest.raises(UnsupportedError) as caught:
        InferenceSession(strange, quiet(), whole=True)
    assert "Det" in str(caught.value)
    assert not InferenceSession(strange, quiet()).whole
    with plugins_disabled():
        assert not InferenceSession(strange, quiet(), whole=True).replaced


def test_options_that_only_onnx_runtime_obeys_leave_it_the_model(tmp_path: Path) -> None:
    source = FRAMES.SerializeToString()
    given = {"enable_profiling": True, "profile_file_prefix": str(tmp_path / "profile")}
    session = InferenceSession(source, quiet(**given))
    assert not session.whole and "profiling" in session.explain()
    assert Path(session.end_profiling()).parent == tmp_path
    with pytest.raises(UnsupportedError):
        InferenceSession(source, quiet(**given), whole=True)
