"""What ROOT's SOFIE says of its recurrent operators, line by line: see design/0053.

The oracle is that of ONNX's equations, which SOFIE implements (tests/support/onnx_rnn.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from support.checking import assert_close
from support.emitting import Emitted, build
from support.onnx_models import read
from support.onnx_rnn import GATES, INPUTS, KNOWN, OUTPUTS, Case, run_oracle

from onernn import OnernnError, Session, ShapeError, UnsupportedError, load
from onernn.engine import emit
from onernn.ir.graph import Value

T, N, C, H = 5, 3, 4, 2
LENGTHS = np.array([5, 1, 3], np.int32)
OPS = [*GATES]
DIRECTIONS = ["forward", "reverse", "bidirectional"]


def case_of(
    op: str, given: str = "", direction: str = "forward", layout: int = 0, **attributes: Any
) -> Case:
    """A node with the optional inputs that ``given`` names."""
    rng, d, gates = np.random.default_rng(3), 2 if direction == "bidirectional" else 1, GATES[op]
    state = (N, d, H) if layout else (d, N, H)
    shapes = {
        "X": (N, T, C) if layout else (T, N, C), "W": (d, gates * H, C), "R": (d, gates * H, H),
        "B": (d, 2 * gates * H), "initial_h": state, "initial_c": state, "P": (d, 3 * H),
    }  # fmt: skip
    arrays = {name: rng.uniform(-1, 1, shape).astype(np.float32) for name, shape in shapes.items()}
    arrays["sequence_lens"] = LENGTHS
    kept = {"X", "W", "R", *given.split()}
    told = {"hidden_size": H, **({"layout": 1} if layout else {}), **attributes}
    if direction != "forward":
        told["direction"] = direction
    return Case(
        op, told, {k: v for k, v in arrays.items() if k in kept}, OUTPUTS[op].split(), 14, H
    )


def states(op: str) -> str:
    return "initial_h initial_c" if op == "LSTM" else "initial_h"


CASES = {f"{op.lower()}_plain": case_of(op) for op in OPS}
for op, direction, layout in product(OPS, DIRECTIONS, (0, 1)):
    key = f"{op.lower()}_{direction}_{layout}"
    CASES[key] = case_of(op, f"B {states(op)}", direction, layout)
    CASES[f"{key}_lens"] = case_of(op, f"B sequence_lens {states(op)}", direction, layout)
for op in OPS:
    CASES[f"{op.lower()}_clip"] = case_of(op, f"B {states(op)}", clip=0.25)
    CASES[f"{op.lower()}_no_clip"] = case_of(op, f"B {states(op)}", clip=0.0)
CASES["gru_linear_before_reset"] = case_of("GRU", "B initial_h", linear_before_reset=1)
for direction, layout in product(DIRECTIONS, (0, 1)):
    given = "B P initial_h initial_c"
    CASES[f"lstm_peephole_{direction}_{layout}"] = case_of("LSTM", given, direction, layout)
CASES["lstm_input_forget"] = case_of("LSTM", "B initial_h initial_c", input_forget=1)
for name, (alpha, beta, _) in KNOWN.items():
    told = {"activation_alpha": [0.5]} if alpha else {}
    told |= {"activation_beta": [0.25]} if beta else {}
    CASES[f"rnn_{name.lower()}"] = case_of("RNN", "B initial_h", activations=[name], **told)
CASES["rnn_two_functions"] = case_of("RNN", "B", "bidirectional", activations=["Relu", "Sigmoid"])


COMPILED = [
    name
    for name in CASES
    if re.search(
        "plain|(?<!no)_clip|bidirectional_(0_lens|1)$|peephole_bi|linear|forget|two_functions", name
    )
]


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Emitted]:
    models = {name: read(CASES[name].model()) for name in COMPILED}
    return build(models, tmp_path_factory.mktemp("sofie"), ("-O0",))


def shapes_of(case: Case, declared: Any = None, static: Any = None) -> dict[str, Any]:
    return emit.infer_shapes(emit.parse(read(case.model()), declared), static)


def ours(case: Case) -> dict[str, Any]:
    """What a session computes."""
    return Session(read(case.model())).run(case.feed())


def right(case: Case) -> dict[str, np.ndarray]:
    return {key: array for key, array in run_oracle(case).items() if key in case.outputs}


@pytest.mark.parametrize("name", CASES)
def test_python_computes_the_equations(name: str) -> None:
    case = CASES[name]
    got = ours(case)
    for key, array in right(case).items():
        assert_close(got[key], array)


@pytest.mark.parametrize("name", COMPILED)
def test_generated_code_computes_the_equations(name: str, generated: Mapping[str, Emitted]) -> None:
    """Called twice: a state of the call before would be seen."""
    want = right(CASES[name])
    status, compiled = generated[name].run(CASES[name].feed(), want)
    assert status == 0, compiled
    for key, array in want.items():
        assert_close(compiled[key], array.reshape(-1))


def test_the_equations_tell_gates_directions_and_layouts_apart() -> None:
    """What the comparison stands on."""
    for op in OPS:
        case = CASES[f"{op.lower()}_bidirectional_0"]
        want = run_oracle(case)["Y"]
        for name in ("W", "R", "B"):
            for axis in (0, 1):
                changed = {**case.arrays, name: np.flip(case.arrays[name], axis)}
                other = run_oracle(replace(case, arrays=changed))["Y"]
                assert np.abs(other - want).max() > 1e-2
        turned = {**case.arrays, "X": case.arrays["X"][::-1]}
        assert np.abs(run_oracle(replace(case, arrays=turned))["Y"] - want).max() > 1e-2


def opened(case: Case) -> dict[str, Value]:
    """Inputs whose T and N are open, as SOFIE's are not."""
    named = {T: "T", N: "N"}
    axes = {"X": 2, "sequence_lens": 1, "initial_h": 2, "initial_c": 2}
    return {
        name: Value(
            name,
            array.dtype.name,
            tuple(named.get(n, n) if at < axes[name] else n for at, n in enumerate(array.shape)),
        )
        for name, array in case.feed().items()
    }


@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("op", OPS)
def test_shapes_are_those_of_both_layouts(op: str, direction: str, layout: int) -> None:
    case = CASES[f"{op.lower()}_{direction}_{layout}"]
    d = 2 if direction == "bidirectional" else 1
    for t, n, declared in ((T, N, None), ("T", "N", opened(case))):
        shapes = shapes_of(case, declared)
        assert shapes["Y"] == ((n, t, d, H) if layout else (t, d, n, H))
        for name in case.outputs[1:]:
            assert shapes[name] == ((n, d, H) if layout else (d, n, H))
    fixed = shapes_of(case, opened(case), {"N": 7})
    assert fixed["Y"] == ((7, "T", d, H) if layout else ("T", d, 7, H))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("op", OPS)
def test_types_are_those_of_the_input(op: str, dtype: str) -> None:
    case = CASES[f"{op.lower()}_forward_0"]
    arrays = {name: array.astype(dtype) for name, array in case.arrays.items()}
    program = emit.parse(read(replace(case, arrays=arrays).model()))
    before = emit.infer_types(program)
    emit.infer_shapes(program)
    for types in (before, emit.infer_types(program)):
        assert {types[name] for name in (*case.outputs, "X")} == {dtype}


@pytest.mark.parametrize("op", OPS)
def test_the_five_steps_make_what_one_call_writes(op: str, tmp_path: Path) -> None:
    file = tmp_path / "tagger.onnx"
    onnx.save(CASES[f"{op.lower()}_bidirectional_1"].model(), file)
    program = emit.parse(file)  # Parse
    assert emit.infer_types(program)["Y"] == "float32"  # TypeInference
    assert emit.infer_shapes(program)["Y"] == (N, T, 2, H)  # ShapeInference
    weights = emit.initialize(program, "bf16")  # Initialize
    files = emit.generate(program, weights, name="tagger")  # Generate
    written = emit.write_cpp(load(file), tmp_path / "out", weights="bf16")
    assert {str(path.relative_to(tmp_path / "out")) for path in written} == {*files}
    for name, content in files.items():
        data = (tmp_path / "out" / name).read_bytes()
        if isinstance(content, str):
            data, content = data.partition(b"\n")[2], content.encode()
        assert data == content, name


def test_steps_out_of_order_and_names_of_no_file_are_refused() -> None:
    made, other = (emit.parse(read(CASES["gru_plain"].model())) for _ in range(2))
    with pytest.raises(UnsupportedError, match="call infer_shapes before initialize"):
        emit.initialize(made)
    for program in (made, other):
        emit.infer_shapes(program)
    with pytest.raises(UnsupportedError, match="inferred"):
        emit.infer_shapes(made, {"N": 1})
    weights = emit.initialize(made)
    with pytest.raises(UnsupportedError, match="initialize"):
        emit.generate(other, weights, name="gru")
    for name in ("", "class", "a b", "../up", 'x"; system("true'):
        with pytest.raises(ShapeError, match="expected a C\\+\\+ name"):
            emit.generate(made, weights, name=name)
    with pytest.raises(UnsupportedError, match="model: expected"):
        emit.parse(7)  # type: ignore[arg-type]


def refusal(case: Case, **changed: Any) -> str:
    """Why neither code is generated nor Python runs it; ``changed``: arrays, None: absent."""
    arrays = {k: v for k, v in {**case.arrays, **changed}.items() if v is not None}
    with pytest.raises(OnernnError) as refused:
        shapes_of(replace(case, arrays=arrays))
    with pytest.raises(OnernnError) as ran:
        ours(replace(case, arrays=arrays))
    assert str(ran.value)
    return str(refused.value)


def full(op: str) -> Case:
    """With every input that there is."""
    return case_of(op, INPUTS[op])


@pytest.mark.parametrize("name", [name for name in INPUTS["LSTM"].split() if name != "B"])
@pytest.mark.parametrize("op", OPS)
def test_each_input_of_another_rank_is_refused_by_name(op: str, name: str) -> None:
    if name in INPUTS[op].split():
        array = full(op).arrays[name]
        for wrong in (array[None], array[..., 0]):
            found = refusal(full(op), **{name: wrong})
            assert name in found and op in found, found


@pytest.mark.parametrize("op", OPS)
def test_a_bias_has_two_axes_and_is_never_repeated_over_words(op: str) -> None:
    """SOFIE's own bias of four or five axes, T and N among them, is none of ONNX's."""
    case = full(op)
    repeated = np.broadcast_to(case.arrays["B"][:, None, None], (1, T, N, 2 * GATES[op] * H))
    for wrong in (repeated.copy(), case.arrays["B"][0]):
        assert "B" in refusal(case, B=wrong)


@pytest.mark.parametrize("name", ["W", "R"])
@pytest.mark.parametrize("op", OPS)
def test_weights_that_are_missing_are_refused_by_name(op: str, name: str) -> None:
    assert name in refusal(case_of(op), **{name: None})


@pytest.mark.parametrize("op", OPS)
def test_a_tensor_that_the_model_does_not_have_is_refused_by_name(op: str) -> None:
    for at, name in enumerate(INPUTS[op].split()):
        proto = full(op).model()
        proto.graph.node[0].input[at] = "nowhere"
        with pytest.raises(OnernnError, match="nowhere"):
            emit.infer_shapes(emit.parse(read(proto)))
        assert name  # its slot


@pytest.mark.parametrize(
    "attributes, reason",
    [
        ({"activations": ["Sinh"]}, "sinh"),
        ({"direction": "backward"}, "direction='backward': expected one of"),
        ({"hidden_size": H + 1}, f"hidden_size={H + 1}"),
        ({"layout": 2}, "layout=2: expected one of"),
        ({"clip": -1.0}, "positive bound"),
        ({"output_sequence": 1}, "attribute output_sequence"),
    ],
    ids=str,
)
@pytest.mark.parametrize("op", OPS)
def test_attributes_that_no_operator_has_are_refused(
    op: str, attributes: dict[str, Any], reason: str
) -> None:
    case = case_of(op)
    count = {"RNN": 1, "GRU": 2, "LSTM": 3}[op]
    told = {k: v * count if k == "activations" else v for k, v in attributes.items()}
    assert reason in refusal(replace(case, attributes={**case.attributes, **told}))


@pytest.mark.parametrize("value", [2, -1])
@pytest.mark.parametrize("op, name", [("LSTM", "input_forget"), ("GRU", "linear_before_reset")])
def test_flags_are_zero_or_one(op: str, name: str, value: int) -> None:
    assert f"{name}={value}: expected one of 0, 1" in refusal(case_of(op, **{name: value}))


@pytest.mark.parametrize("op", OPS)
def test_weights_of_integers_are_refused(op: str) -> None:
    case = case_of(op)
    assert "floats of one type" in refusal(case, W=case.arrays["W"].astype(np.int64))


@pytest.mark.parametrize("op", OPS)
def test_outputs_are_there_as_they_are_asked_for(op: str) -> None:
    whole = CASES[f"{op.lower()}_forward_0"]
    want = run_oracle(whole)
    for name in whole.outputs:
        one = replace(whole, outputs=[name])
        assert [*shapes_of(one)].count(name) == 1
        (got,) = ours(one).values()
        assert_close(got, want[name])


@pytest.mark.parametrize("op", OPS)
def test_defaults_are_those_of_sofie(op: str) -> None:
    """No activations, clip, direction, layout or flag told: as if each were."""
    functions = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}
    more = {"LSTM": {"input_forget": 0}, "GRU": {"linear_before_reset": 0}}.get(op, {})
    told = {"activations": functions[op], "clip": 0.0, "direction": "forward", "layout": 0, **more}
    silent = case_of(op, "B")
    silent.attributes.clear()
    case = case_of(op, "B", **{k: v for k, v in told.items() if k not in ("direction", "layout")})
    case = replace(case, attributes={**case.attributes, **told})
    got = ours(silent)
    for one, other in zip(got.values(), ours(case).values(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert_close(got["Y"], run_oracle(case)["Y"])


def test_a_tanh_saturates_far_from_zero() -> None:
    """SOFIE's (1 - e) / (1 + e) with e = exp(-2 x) is infinity by infinity there."""
    case = case_of("RNN", "B")
    case.arrays["B"][:] = -60
    got = ours(case)["Y"]
    np.testing.assert_array_equal(got, np.full_like(got, -1))


def test_lengths_let_the_reverse_direction_begin_at_the_last_word() -> None:
    """What stands behind a sentence changes nothing; SOFIE begins there."""
    case = CASES["gru_reverse_0_lens"]
    dirty = case.arrays["X"].copy()
    for n, length in enumerate(LENGTHS):
        dirty[length:, n] = 9
    got = ours(replace(case, arrays={**case.arrays, "X": dirty}))
    for name, array in right(case).items():
        assert_close(got[name], array)
