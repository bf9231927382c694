"""Statements of the references' pages, turned around: the test that a row names fails.

Gate orders, signs, layouts and limits, a fault for each. `make long` tries a few, `make mutants`
all of them.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support import shown
from support.mutants import ALL, Checkout, Mutant

MXNET, SOFIE, PADDLE = "rnn_document", "sofie", "gru_document"
EQUATIONS = {
    MXNET: (MXNET, "test_each_mode_computes_the_documented_equations"),
    SOFIE: (SOFIE, "test_python_computes_the_equations"),
    PADDLE: (PADDLE, "test_each_form_computes_the_documents_formulas"),
}
LAYERS, RIGHT = "layers", "test_layers_are_right"
_MXNET, _ONNX = "adapters/mxnet/layers.py", "adapters/onnx/rules.py"
_PADDLE = "adapters/paddle/layers.py"

MUTANTS = [
    Mutant(
        "MXNet: order of a GRU's gates",
        "reorders/mxnet.py",
        'Cell.LBR_GRU: "r u o"',
        'Cell.LBR_GRU: "u r o"',
        EQUATIONS[MXNET],
    ),
    # From here on where all are asked for.
    Mutant(
        "SOFIE: order of an LSTM's gates",
        "reorders/onnx.py",
        'lstm="i o f c"',
        'lstm="i f o c"',
        EQUATIONS[SOFIE],
    ),
    Mutant(
        "Paddle: sign of the update gate",
        "reorders/paddle.py",
        "GateLayout((0, 1, 2), (-1 if flip else 1, 1, 1))",
        "GateLayout((0, 1, 2), (1, 1, 1))",
        EQUATIONS[PADDLE],
    ),
    Mutant(
        "MXNet: order of an LSTM's gates",
        "reorders/mxnet.py",
        'Cell.LSTM: "i f c o"',
        'Cell.LSTM: "i c f o"',
        EQUATIONS[MXNET],
    ),
    Mutant(
        "MXNet: a GRU's second bias outside of the reset gate",
        "reorders/layers.py",
        "np.concatenate([x[:2] + h[:2], x[2:], h[2:]])",
        "np.concatenate([x[:2] + h[:2], x[2:] + h[2:], 0 * h[2:]])",
        EQUATIONS[MXNET],
    ),
    Mutant(
        "MXNet: biases in the vector changed over",
        "reorders/mxnet.py",
        '        yield f"{place}_i2h_bias", (rows,)\n        yield f"{place}_h2h_bias", (rows,)\n',
        '        yield f"{place}_h2h_bias", (rows,)\n        yield f"{place}_i2h_bias", (rows,)\n',
        EQUATIONS[MXNET],
    ),
    Mutant(
        "MXNet: width of later layers",
        "reorders/mxnet.py",
        "width * stack.directions if layer else input_size",
        "width if layer else input_size",
        (MXNET, "test_the_vector_has_the_length_that_mxnet_infers"),
    ),
    Mutant(
        "MXNet: a limit on layers",
        "adapters/mxnet/attributes.py",
        "0 < stack.layers < 2**10",
        "stack.layers < 2**10",
        (MXNET, "test_what_the_documentation_does_not_allow_is_refused"),
    ),
    Mutant(
        "MXNet: layers and directions of a state changed over",
        "adapters/common/bodies.py",
        "state.reshape(spec.layers, spec.directions, -1, width)",
        "state.reshape(spec.directions, spec.layers, -1, width)",
        EQUATIONS[MXNET],
    ),
    Mutant(
        "MXNet: states that were asked for",
        _MXNET,
        "results if state_outputs",
        "results if state_outputs and False",
        EQUATIONS[MXNET],
    ),
    Mutant(
        "MXNet: lengths ignored",
        _MXNET,
        "if use_sequence_length else None",
        "if use_sequence_length is None else None",
        (MXNET, "test_lengths_are_an_input_where_the_flag_says_so"),
    ),
    Mutant(
        "MXNet: the clip's upper end",
        "adapters/mxnet/attributes.py",
        "return least, most",
        "return least, -least",
        (MXNET, "test_clips_bound_the_cell_state_in_every_step"),
    ),
    Mutant(
        "MXNet: NaN not stopped",
        _MXNET,
        "cell_clip_nan=stops_nan",
        "cell_clip_nan=False",
        (MXNET, "test_a_nan_in_the_cell_state_is_stopped_where_both_ends_are_given"),
    ),
    Mutant(
        "MXNet: NaN in gradients",
        "src/onernn/backend/reference.py",
        "np.where(gradient == 0, gradient, gradient * factor)",
        "gradient * factor",
        ("live", "test_a_nan_that_a_clip_has_stopped_reaches_no_gradient and reference"),
    ),
    Mutant(
        "SOFIE: order of a GRU's gates",
        "reorders/onnx.py",
        'gru="u r o"',
        'gru="r u o"',
        EQUATIONS[SOFIE],
    ),
    Mutant(
        "SOFIE: order of peepholes",
        "reorders/onnx.py",
        "PEEPHOLES = GateLayout((0, 2, 1), (1, 1, 1))",
        "PEEPHOLES = GateLayout((0, 1, 2), (1, 1, 1))",
        EQUATIONS[SOFIE],
    ),
    Mutant(
        "SOFIE: sign of an input gate that forgets",
        "reorders/onnx.py",
        "array[..., 1, :] = -array[..., 0, :]",
        "array[..., 1, :] = array[..., 0, :]",
        EQUATIONS[SOFIE],
    ),
    Mutant(
        "SOFIE: the reset gate's place",
        _ONNX,
        'more = {"linear_before_reset": linear_before_reset}',
        'more = {"linear_before_reset": True}',
        EQUATIONS[SOFIE],
    ),
    Mutant(
        "SOFIE: the reverse direction",
        _ONNX,
        '"reverse": "right2left"',
        '"reverse": "left2right"',
        EQUATIONS[SOFIE],
    ),
    Mutant(
        "SOFIE: no clip",
        _ONNX,
        "gate_clip=clip or None)",
        "gate_clip=None)",
        EQUATIONS[SOFIE],
    ),
    Mutant(
        "SOFIE: axes of Y of both directions",
        _ONNX,
        "y.transpose(0, 2, 1, 3)",
        "y.transpose(2, 0, 1, 3)",
        (SOFIE, "test_shapes_are_those_of_both_layouts"),
    ),
    Mutant(
        "SOFIE: states of layout 1",
        _ONNX,
        "results = (y, *map(turn, ends))",
        "results = (y, *ends)",
        (SOFIE, "test_shapes_are_those_of_both_layouts"),
    ),
    Mutant(
        "SOFIE: axes of inputs",
        _ONNX,
        "if value and value.type.rank not in (None, _AXES[value.slot]):",
        "if False:",
        (SOFIE, "test_each_input_of_another_rank_is_refused_by_name"),
    ),
    Mutant(
        "SOFIE: flags other than 0 and 1",
        _ONNX,
        "    input_forget=_FLAG,",
        "    input_forget=0,",
        (SOFIE, "test_flags_are_zero_or_one"),
    ),
    Mutant(
        "SOFIE: hidden_size not compared",
        _ONNX,
        "if units != spec.hidden_size or",
        "if",
        (SOFIE, "test_attributes_that_no_operator_has_are_refused"),
    ),
    Mutant(
        "SOFIE: sizes that are not fixed",
        "src/onernn/engine/emit/pipeline.py",
        "inferring.infer(program, static)",
        "inferring.infer(program, None)",
        (SOFIE, "test_shapes_are_those_of_both_layouts"),
    ),
    Mutant(
        "SOFIE: weights of another program",
        "src/onernn/engine/emit/generating.py",
        "if store.packed_for is not program:",
        "if False:",
        (SOFIE, "test_steps_out_of_order_and_names_of_no_file_are_refused"),
    ),
    Mutant(
        "SOFIE: generated code with another gate",
        "src/onernn/kernels/lstm.hpp",
        "multiply_add(f, c, i * ",
        "multiply_add(i, c, f * ",
        (SOFIE, "test_generated_code_computes_the_equations"),
    ),
    Mutant(
        "Paddle: order of gates",
        "reorders/paddle.py",
        "GateLayout((0, 1, 2), (-1 if flip",
        "GateLayout((1, 0, 2), (-1 if flip",
        EQUATIONS[PADDLE],
    ),
    Mutant(
        "Paddle: WeightH read row by row",
        "reorders/paddle.py",
        "layout.split(np.concatenate(rows, axis=1))",
        "layout.split(flat)",
        ("paddle", "test_weight_h_places_each_scalar_by_its_address"),
    ),
    Mutant(
        "Paddle: the default formula",
        _PADDLE,
        '"activation": _TANH}, "origin_mode", False)',
        '"activation": _TANH}, "origin_mode", True)',
        (PADDLE, "test_the_default_is_the_formula_that_onednn_lacks"),
    ),
    Mutant(
        "Paddle: is_reverse",
        _PADDLE,
        'True: "right2left"}',
        'True: "left2right"}',
        EQUATIONS[PADDLE],
    ),
    Mutant(
        "Paddle: an initial state dropped",
        _PADDLE,
        "x.Rnn(*begin, spec",
        "x.Rnn(spec",
        EQUATIONS[PADDLE],
    ),
    Mutant(
        "Paddle: a bias of several rows",
        "reorders/gates.py",
        "if bias.shape[-1:] != (bias.size,):",
        "if False:",
        (PADDLE, "test_parameters_of_another_shape_are_refused"),
    ),
    Mutant(
        "Paddle: functions changed over",
        _PADDLE,
        '{"gate_activation": _SIGMOID, "activation": _TANH}',
        '{"activation": _TANH, "gate_activation": _SIGMOID}',
        (PADDLE, "test_any_activation_computes_its_formula"),
    ),
    Mutant(
        "oneDNN: order of gates",
        "src/onernn/backend/onednn/kernels.py",
        "arrays = (layer, weights.iter, bias,",
        "arrays = (layer[..., ::-1, :].copy(), weights.iter, bias,",
        (LAYERS, f"{RIGHT} and onednn"),
    ),
    Mutant(
        "oneDNN: update and reset gate",
        "src/onernn/ir/cells.py",
        "u, r = (b.gate(",
        "r, u = (b.gate(",
        (LAYERS, f"{RIGHT} and reference"),
    ),
    Mutant(
        "oneDNN: the state that the output gate looks at",
        "src/onernn/ir/cells.py",
        "b.gate(0, add_peephole(3, after))",
        "b.gate(0, add_peephole(3, c))",
        (LAYERS, f"{RIGHT} and reference"),
    ),
    Mutant(
        "oneDNN: sign of the attention",
        "src/onernn/ir/cells.py",
        "else (1 - b.attention) * u",
        "else b.attention * u",
        (LAYERS, f"{RIGHT} and reference"),
    ),
    Mutant(
        "oneDNN: no bias",
        "src/onernn/backend/onednn/kernels.py",
        "    if bias is None:  # oneDNN requires a bias",
        "    if True:",
        (LAYERS, f"{RIGHT} and onednn"),
    ),
    Mutant(
        "oneDNN: directions that are added",
        "src/onernn/backend/layer_walk.py",
        "wide[:, :width] + wide[:, width:]",
        "wide[:, :width] - wide[:, width:]",
        (LAYERS, f"{RIGHT} and reference"),
    ),
    Mutant(
        "oneDNN: ntc taken for tnc",
        "src/onernn/backend/arguments.py",
        'return dense if layout == "tnc" else dense.swapaxes(0, 1)',
        "return dense",
        ("array_layouts", "test_ntc_is_tnc_with_the_first_axes_exchanged"),
    ),
    Mutant(
        "oneDNN: the layout ldgoi",
        "src/onernn/ir/weights.py",
        "np.moveaxis(np.asarray(array), -1, 2)",
        "np.moveaxis(np.asarray(array), -1, -1)",
        ("array_layouts", "test_weights_may_come_output_major"),
    ),
]
PLAIN = 1


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.what)
def test_its_place_is_there_and_its_test_on_a_page(repo: Path, mutant: Mutant) -> None:
    assert (repo / mutant.file).read_text().count(mutant.old) == 1
    name = mutant.tests[1].partition(" ")[0]
    (file,) = (repo / "tests").rglob(f"test_{mutant.tests[0]}.py")
    assert name in shown.names() and file in {test.file for test in shown.tests()[name]}


def test_every_page_has_a_fault_of_each_kind() -> None:
    """Orders, signs, layouts and limits of each text are among them."""
    for text in ("MXNet", "SOFIE", "Paddle", "oneDNN"):
        assert sum(mutant.what.startswith(text) for mutant in MUTANTS) >= 7


@pytest.mark.long
@pytest.mark.parametrize(
    "mutant", MUTANTS if ALL else MUTANTS[:PLAIN], ids=lambda mutant: mutant.what
)
def test_the_named_test_fails(checkout: Checkout, mutant: Mutant) -> None:
    checkout.assert_seen(mutant)


@pytest.mark.long
def test_without_a_fault_the_named_tests_pass(checkout: Checkout) -> None:
    for tests in dict.fromkeys(m.tests for m in MUTANTS[: None if ALL else 1]):
        done = checkout.run(tests)
        assert done.returncode == 0, done.stdout
