"""Sizes that a model declares or names: constants before anything reads them, and equal by name."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from support.command_line import failed
from support.command_line import onernn as command
from support.onnx_models import assert_equal, check, live, model_of, parsed, read, theirs

from onernn import Session, ShapeError, UnsupportedError, compile_model, convert, load
from onernn.engine.emit import write_cpp
from onernn.engine.emit.pipeline import read_declared, read_static
from onernn.fuse_passes.joined_models import join
from onernn.fuse_passes.over_time import bind

RNG = np.random.default_rng(7)


def normal(*shape: int) -> np.ndarray:
    return (RNG.normal(size=shape) * 0.4).astype(np.float32)


WIDTHS = {
    "Gather": "s = Shape (x) i = Gather (s, two) n = Unsqueeze (i, zero)",
    "start": "n = Shape <start = 2> (x)",
    "from the end": "n = Shape <start = -1> (x)",
    "Slice": "s = Shape (x) n = Slice (s, two1, three)",
    "Split": "s = Shape (x) a, b, n = Split <axis = 0> (s)",
    "of a view": "r = Transpose <perm = [2, 0, 1]> (x) n = Shape <end = 1> (r)",
}


@pytest.mark.parametrize("sizes", ["5, 2, 3", "T, N, 3", "?, ?, 3"])
@pytest.mark.parametrize("how", WIDTHS)
def test_weights_may_be_shaped_by_a_size_of_an_input(how: str, sizes: str) -> None:
    constants = {
        "flat": normal(36),
        "R": normal(1, 12, 4),
        **{"zero": np.array([0]), "one": np.array([1]), "rows": np.array([1, 12])},
        **{"two": np.array(2), "two1": np.array([2]), "three": np.array([3])},
    }
    text = f"""(float[{sizes}] x) => (y) {{
        {WIDTHS[how]}
        shape = Concat <axis = 0> (rows, n)
        W = Reshape (flat, shape)
        y = GRU <hidden_size = 4> (x, W, R)
    }}"""
    proto = parsed(text, {k: v for k, v in constants.items() if re.search(rf"\b{k}\b", text)})
    if how == "Split":
        proto.opset_import[0].version = 13
    check(proto, {"x": normal(5, 2, 3)})
    assert live(proto, {"x": normal(5, 2, 3)}).replaced


def test_an_output_may_be_a_known_size() -> None:
    proto = parsed("(float[N, 3] x) => (s, t) { s = Shape <start = 1> (x) t = Shape (x) }")
    (s, t) = Session(read(proto)).run({"x": normal(5, 3)}).values()
    assert (s.tolist(), t.tolist()) == ([3], [5, 3])


def unequal(first: str, second: str, more: str = "") -> onnx.ModelProto:
    """A Reshape whose sizes are known if the second axis of a is the third one of b."""
    constants = {
        **{"two": np.array([2]), "three": np.array([3]), "one": np.array([1])},
        **{"eight": np.array([8]), "rest": np.array([-1])},
    }
    return parsed(
        f"""(float[1, {first}, 128] a, float[1, 16, {second}, 8] b) => (y{more}) {{
            s = Shape (b)
            t = Slice (s, two, three)
            shape = Concat <axis = 0> (one, t, eight, rest)
            y = Reshape (a, shape)
            z = Transpose <perm = [0, 2, 1, 3]> (b)
        }}""",
        constants,
    )


def feed(first: int, second: int) -> dict[str, np.ndarray]:
    return {"a": normal(1, first, 128), "b": normal(1, 16, second, 8)}


def compiled(proto: onnx.ModelProto, folder: Path, **options: object) -> Session:
    compile_model(read(proto), folder / "m.onernn", **options)  # type: ignore[arg-type]
    return Session(folder / "m.onernn")


def test_sizes_of_one_name_are_equal(tmp_path: Path) -> None:
    proto, call = unequal("S", "S"), feed(6, 6)
    session = compiled(proto, tmp_path)
    assert_equal(session.run(call).values(), theirs(proto, call))
    assert [v.named for v in read(proto).inputs] == [{1: "S"}, {2: "S"}]
    with pytest.raises(UnsupportedError, match="its shape is not known before a run"):
        compiled(unequal("S", "R"), tmp_path)


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_two_numbers_for_one_name_are_refused(backend: str, tmp_path: Path) -> None:
    """ONNX Runtime would reshape (1, 3, 128) to (1, 6, 8, 8)."""
    session = Session(read(unequal("S", "S")), backend=backend)
    session.run(feed(6, 6))
    wanted = "the model has one size 'S', got 3 on axis 1 of 'a' and 6 on axis 2 of 'b'"
    with pytest.raises(ShapeError, match=wanted):
        session.run(feed(3, 6))
    with pytest.raises(ShapeError):
        compiled(unequal("S", "S"), tmp_path).run(feed(3, 6))
    check(unequal("S", "R"), feed(3, 6))


@pytest.mark.parametrize("text", ["?", "*", "None", "-1"])
def test_what_stands_for_no_name_is_none(text: str) -> None:
    proto = unequal("S", "S")
    for value, axis in zip(proto.graph.input, (1, 2), strict=True):
        value.type.tensor_type.shape.dim[axis].dim_param = text
    check(proto, feed(3, 6))


@pytest.mark.parametrize("where", ["output", "value_info"])
def test_names_of_other_values_name_sizes_of_inputs(where: str, tmp_path: Path) -> None:
    proto = unequal("S", "?", ", z" if where == "output" else "")
    values = getattr(proto.graph, where)
    if where == "output":
        del values[1]
    values.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, [1, "S", 16, 8]))
    assert [v.named for v in read(proto).inputs] == [{1: "S"}, {2: "S"}]
    call = feed(6, 6)
    assert_equal(compiled(proto, tmp_path).run(call).values(), theirs(proto, call))


def test_a_name_that_an_output_should_not_have_changes_nothing() -> None:
    """PyTorch's exporter writes names of outputs as users say them."""
    proto = unequal("S", "R", ", z")
    del proto.graph.output[1]
    wrong = helper.make_tensor_value_info("z", TensorProto.FLOAT, [1, "S", 16, 8])
    proto.graph.output.append(wrong)
    check(proto, feed(3, 6))


def test_a_size_that_is_said_for_one_input_is_that_of_the_other() -> None:
    graph = read(unequal("S", "S"))
    for known in (
        {"declared": {"a": (1, 6, 128)}},
        {"declared": {"b": np.zeros((1, 16, 6, 8))}},
        {"declared": read_declared(["a=float32(1, 6, 128)"])},
    ):
        assert [v.shape for v in bind(graph, **known).inputs] == [(1, 6, 128), (1, 16, 6, 8)]
    given = bind(graph, {"b": normal(1, 16, 6, 8)})
    assert [v.shape for v in given.inputs] == [(1, 6, 128)]
    with pytest.raises(ShapeError, match="one size 'S', got 6 on axis 1 of 'a' and 7 on axis 2"):
        bind(graph, {}, {"a": (1, 6, 128), "b": (1, 16, 7, 8)})
    with pytest.raises(ShapeError, match=r"input a: .*got the shape \(1, 6, 127\)"):
        bind(graph, {}, read_declared(["a=float32(1, 6, 127)"]))


def test_names_are_written_and_read_again(tmp_path: Path) -> None:
    convert(read(unequal("S", "S")), tmp_path / "m.onnx")
    assert [v.named for v in load(tmp_path / "m.onnx").inputs] == [{1: "S"}, {2: "S"}]


def test_names_of_joined_models_stay_apart() -> None:
    first = parsed("(float[N, 3] a, float[N, 3] b) => (c) { c = Add (a, b) }")
    second = parsed("(float[N, 3] d) => (e) { e = Relu (d) }")
    graphs = [read(first), read(second)]
    object.__setattr__(graphs[0], "name", "one.onnx")
    object.__setattr__(graphs[1], "name", "two.onnx")
    named = [v.named for v in join(*graphs).inputs]
    assert named == [{0: "one/N"}, {0: "one/N"}, {0: "two/N"}]


@pytest.mark.parametrize("sizes", [(1, 5, 3), (1, 1, 3), (1, 5, 1)])
def test_squeeze_without_axes_follows_the_sizes_of_a_run(sizes: tuple[int, ...]) -> None:
    for text in ("1, N, K", ", ".join(map(str, sizes))):
        proto = parsed(f"(float[{text}] x) => (y) {{ s = Squeeze (x) y = Relu (s) }}")
        check(proto, {"x": normal(*sizes)})


def test_squeeze_without_axes_is_decided_by_known_sizes(tmp_path: Path) -> None:
    proto = parsed("(float[1, 2, 3] x) => (y) { s = Squeeze (x) y = Relu (s) }")
    x = normal(1, 2, 3)
    assert_equal(compiled(proto, tmp_path).run({"x": x}).values(), [np.maximum(x[0], 0)])


ADVICE = [
    ("float[1, ?, 3] a", "y = Squeeze (a)", "a=float32(1, ?, 3)", "a_1=?"),
    (
        "float[?, 1, ?, 4] a, float[N] b",
        "y = Squeeze (a) z = Relu (b)",
        "a=float32(?, 1, ?, 4)",
        "a_0=?,a_2=?",
    ),
]


@pytest.mark.parametrize("inputs, nodes, option, static", ADVICE)
def test_the_sizes_that_are_asked_for_suffice(
    tmp_path: Path, inputs: str, nodes: str, option: str, static: str
) -> None:
    outputs = "y, z" if "z =" in nodes else "y"
    graph = read(parsed(f"({inputs}) => ({outputs}) {{ {nodes} }}"))
    with pytest.raises(UnsupportedError) as error:
        compile_model(graph, tmp_path / "m.onernn")
    assert f"sizes: numbers for ? suffice: pass --input '{option}'" in str(error.value)
    said = option.replace("?", "6")
    compile_model(graph, tmp_path / "m.onernn", inputs=read_declared([said]))
    with pytest.raises(UnsupportedError) as error:
        write_cpp(graph, tmp_path / "cpp")
    assert f"sizes: numbers for ? suffice: pass --static {static}" in str(error.value)
    write_cpp(graph, tmp_path / "cpp", static=read_static(static.replace("?", "6")))


def test_an_error_ends_with_options_for_a_branch_that_a_rate_and_a_size_decide(
    tmp_path: Path,
) -> None:
    """Like silero's: a rate decides the rank of a result, and a size how a state is made."""
    proto = parsed(
        """(float[N, K] x, float[N, 4] s, int64 sr) => (float[N, 4] y, float[?, ?] sN) {
          shape = Shape (x)
          k = Gather (shape, one)
          long = Less (hundred, k)
          known = Equal (sr, rate)
          new = Slice (x, begin, end, axis)
          next = If (long) <then_branch = then () => (float[N, 4] a) { a = Add (new, s) },
            else_branch = other () => (float[N, 4] b) { b = Sub (new, s) }>
          sN = If (known) <then_branch = high () => (float[N, 4] c) { c = Tanh (next) },
            else_branch = low () => (float[1, N, 4] d) { d = Unsqueeze (next, begin) }>
          y = Relu (sN)
        }""",
        {
            **{"one": np.array(1), "hundred": np.array(100), "rate": np.array(16000)},
            **{"begin": np.array([0]), "end": np.array([4]), "axis": np.array([1])},
        },
    )
    onnx.save(proto, tmp_path / "m.onnx")
    words = ("compile", tmp_path / "m.onnx", "-o", tmp_path / "m.onernn", "--state", "s=sN")
    told = failed(command(*words)).splitlines()
    assert any("input 'x'" in line and "axis 1" in line for line in told[-3:-1])
    options = shlex.split(told[-1].partition("pass ")[2])
    assert options[:3:2] == ["--given", "--input"] and options[1] == "sr=16000"
    assert options[-1] == "s=float32(1, 4)"
    assert command(*words, *options).returncode == 0


def test_no_size_is_asked_for_if_none_suffices(tmp_path: Path) -> None:
    graph = read(parsed("(float[N] x, int64[2] sizes) => (y) { y = Reshape (x, sizes) }"))
    with pytest.raises(UnsupportedError, match="only Python runs it") as error:
        compile_model(graph, tmp_path / "m.onernn")
    assert "say" not in str(error.value) and "declare" not in str(error.value)


def test_only_what_is_not_declared_is_said_to_be_so(tmp_path: Path) -> None:
    node = helper.make_node("Add", ["a", "b"], ["y"])
    values = [
        helper.make_tensor_value_info("a", 1, None),
        helper.make_tensor_value_info("b", 1, [3]),
    ]
    graph = read(
        model_of(
            helper.make_graph([node], "g", values, [helper.make_empty_tensor_value_info("y")]),
            {},
            17,
        )
    )
    for write in (
        lambda: compile_model(graph, tmp_path / "m.onernn"),
        lambda: write_cpp(graph, tmp_path / "cpp"),
    ):
        with pytest.raises(UnsupportedError) as error:
            write()
        assert "a: the model does not declare its shape: pass --input 'a=float32(" in str(
            error.value
        )
        assert "b:" not in str(error.value) and "type" not in str(error.value)


WEIGHTS = """(float{sizes} x, float[T, K] z) => (y, r) {{
    s = Shape (x) i = Gather (s, two) n = Unsqueeze (i, zero)
    shape = Concat <axis = 0> (rows, n)
    W = Reshape (flat, shape)
    y = GRU <hidden_size = 4> (x, W, R)
    r = Relu (z)
}}"""


@pytest.mark.parametrize(
    "sizes, option",
    [
        ("[?, N, ?]", "x=float32(x_0, x_1, ?)"),
        ("[K, N, K]", "x=float32(?, x_1, ?)"),
        ("[]", "x=float32(T, N, 128)"),
    ],
)
def test_weights_of_an_unknown_size_ask_for_it(tmp_path: Path, sizes: str, option: str) -> None:
    constants = {
        "flat": normal(36),
        "R": normal(1, 12, 4),
        **{"zero": np.array([0]), "rows": np.array([1, 12]), "two": np.array(2)},
    }
    proto = parsed(WEIGHTS.format(sizes=sizes), constants)
    if sizes == "[]":
        proto.graph.input[0].type.tensor_type.ClearField("shape")
    onnx.save(proto, tmp_path / "m.onnx")
    with pytest.raises(UnsupportedError) as error:
        Session(tmp_path / "m.onnx")
    told = f"expected a constant; known sizes make it one: pass --input '{option}'"
    assert told in str(error.value)
    said = option.replace("?", "3").replace("128", "3")
    x, z = normal(3, 2, 3), normal(3, 3)
    want = theirs(proto, {"x": x, "z": z})
    for inputs in ({"x": (None, None, 3)}, read_declared([said])):
        graph = load(tmp_path / "m.onnx", inputs=inputs)
        assert_equal(Session(graph).run({"x": x, "z": z}).values(), want)
    with pytest.raises(ShapeError, match="input x"):
        Session(graph).run({"x": normal(3, 2, 5), "z": z})
    words = ("compile", tmp_path / "m.onnx", "-o", tmp_path / "m.onernn", "--input", said)
    assert command(*words).returncode == 0
    assert_equal(Session(tmp_path / "m.onernn").run({"x": x, "z": z}).values(), want)


def test_what_more_than_sizes_decides_asks_for_none(tmp_path: Path) -> None:
    nodes = "W = Reshape (flat, shape) y = GRU <hidden_size = 4> (x, W, R)"
    proto = parsed(
        f"(float[T, N, K] x, int64[3] shape) => (y) {{ {nodes} }}",
        {"flat": normal(36), "R": normal(1, 12, 4)},
    )
    with pytest.raises(
        UnsupportedError, match="W 'W' is computed at run time, expected a constant$"
    ):
        Session(read(proto))
    with pytest.raises(UnsupportedError, match="no such input; there are x, shape"):
        onnx.save(proto, tmp_path / "m.onnx")
        load(tmp_path / "m.onnx", inputs={"z": (3,)})
