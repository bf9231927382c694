"""What Paddle, MXNet, PyTorch, TensorFlow, Keras and ONNX Runtime computed, computed without them.

The models are recorded by ``tests/frameworks/record_*.py`` and the exporters' tests beside them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from support.backends import BACKENDS
from support.machine import SATURATES, cut_off_by_onnx_runtime
from support.onnx_written import converted
from support.recordings import RECORDED, fused, loaded

from onernn import Graph, Session, UnsupportedError, convert, fuse, verify
from onernn.adapters.onnx.opsets import IR_VERSIONS
from onernn.ir.rnn import Recurrent
from onernn.verification.recording import read_arrays, read_inputs

# The layers of the fused model, with direction and number where these are not one; whether they
# begin with a state, and whether their input weights stayed in front of them. Then what runs step
# by step, and sigmoids, of which cells that were not found would be made.
BECOMES = {
    "": """
        paddle/attention paddle/dygraph_around_2 paddle/dygraph_around_3 paddle/pooled
        paddle/image_norms_and_sizes_2 paddle/image_norms_and_sizes_3 paddle/image_windows_2
        paddle/image_windows_3 paddle/sentences""",
    "DynamicQuantizeLSTM": "onnx/onnxruntime_quantized_signed onnx/onnxruntime_quantized_unsigned",
    "GRU": """
        paddle/dropout_downgrade paddle/embedding_crf paddle/half_weights paddle/mul_gru_bare
        paddle/matmul_v2_lod_reset paddle/normalized paddle/normalized_clipped
        paddle/relu_candidate paddle/tanh_gate""",
    "GRU back": "paddle/origin_mode_reverse",
    "GRU back of a projection, GRU of a projection": "paddle/shared_projection",
    "GRU back, LSTM from h0, LSTM from h0": "keras/old_states keras/states keras/states_legacy",
    "GRU both": "paddle/bigru_concat",
    "GRU both from h0": "paddle/bidirectional_states",
    "GRU both x2": "paddle/multi_gru_two_layers",
    "GRU from h0": """
        onnx/keras2_gru_before_relu onnx/keras_gru_before paddle/fc_gru_h0_rev0 paddle/initial_state
        paddle/initial_state_clipped paddle/shuffled""",
    "GRU from h0 of a projection": "paddle/gru_unit",
    "GRU from h0, GRU from h0": "onnx/tensorflow1_gru_both",
    "GRU from h0, LSTM from h0": "onnx/tensorflow1_stacked",
    "GRU of a projection": "paddle/fc_relu paddle/running_weight paddle/two_levels",
    "GRU, GRU": "paddle/shared_bias",
    "GRU, LSTM": "keras/old_gates",
    "If": "onnx/tensorflow_cond",
    "If, If, If": "paddle/loop_cases_2 paddle/loop_cases_3",
    "If, LSTM from h0, Loop": "mxnet/gluon_control",
    "LBR_GRU": """
        keras/small keras/small_legacy mxnet/gluon_lengths torch/heads torch/masked torch/voice""",
    "LBR_GRU both from h0": """
        mxnet/numpy_mode_model onnx/torch_gru_dynamic onnx/torch_gru_dynamo onnx/torch_packed_gru
        paddle/dygraph_listener_2 paddle/dygraph_listener_3""",
    "LBR_GRU both x2": "mxnet/gluon_bidirectional_ntc mxnet/legacy_unfused",
    "LBR_GRU both x2 from h0": "paddle/rnn_gru",
    "LBR_GRU both x2 from h0, LSTM from h0": "paddle/pir_recurrent",
    "LBR_GRU both, LSTM both": "keras/old_text_classifier keras/text_classifier",
    "LBR_GRU from h0": """
        onnx/keras2_gru_hard onnx/keras2_masked_gru_hard onnx/keras3_unrolled_gru
        onnx/keras_gru onnx/keras_gru_fixed paddle/loop_appended_2
        paddle/loop_appended_3 paddle/loop_gru_backwards_2 paddle/loop_gru_backwards_3
        paddle/loop_last_of_list_3""",
    "LBR_GRU from h0, LBR_GRU from h0": "onnx/keras3_masked_gru_both onnx/keras_gru_both",
    "LBR_GRU from h0, LSTM from h0": "keras/stateful",
    "LBR_GRU, LBR_GRU back": "keras/reader",
    "LBR_GRU, LSTM, LSTM back": "keras/layers",
    "LBR_GRU, LBR_GRU back, LSTM, RNN_TANH": "mxnet/gluon_unrolled_stack",
    "LBR_GRU, LSTM, RNN_RELU": "keras/cells keras/cells_legacy keras/old_cells",
    "LBR_GRU, Sigmoid": "torch/last_2_8",
    "LSTM": "paddle/fusion_lstm paddle/lstm_cell_used torch/rows torch/rows_dynamic",
    "LSTM back from h0": "paddle/lstm_states_reverse paddle/lstm_states_reverse_clipped",
    "LSTM back from h0, LSTM from h0": "onnx/keras3_unrolled_lstm_both",
    "LSTM back of a projection": "paddle/fused_embedding_fc_lstm",
    "LSTM both": "paddle/lstm_pair torch/textline",
    "LSTM both from h0": "onnx/keras_lstm_both onnx/torch_unsorted_lstm torch/projected",
    "LSTM both from h0, LSTM both from h0": "onnx/torch_tagger onnx/torch_tagger_dynamo",
    "LSTM both x2": """
        mxnet/gluon_crnn mxnet/legacy_fused_checkpoint torch/tagger torch/tagger_2_5""",
    "LSTM both x2 from h0": "paddle/image_crnn_2 paddle/image_crnn_3",
    "LSTM from h0": """
        mxnet/gluon_foreach onnx/keras2_lstm_dropout onnx/keras2_lstm_elu
        onnx/keras3_masking onnx/keras_masked onnx/tensorflow1_lstm
        onnx/tensorflow1_lstm_peepholes onnx/tensorflow1_lstm_relu onnx/tensorflow_scan
        onnx/tensorflow_while onnx/tensorflow_while_lengths onnx/torch_collected_cells
        onnx/torch_custom_lstm onnx/torch_scripted_lstm paddle/loop_while_loop_2
        paddle/loop_while_loop_3""",
    "LSTM from h0, LSTM from h0": """
        onnx/keras3_masked_stack onnx/keras_stacked_cells paddle/loop_bidirectional_2
        paddle/loop_bidirectional_3""",
    ", ".join(["LSTM from h0"] * 4): "onnx/keras3_masked_stack_both",
    "LSTM x2 from h0": "mxnet/gluon_language_model paddle/rnn_lstm",
    ", ".join(["LSTM", *["LSTM from h0"] * 6]): "torch/cells",
    "LSTM, RNN_TANH, RNN_TANH back": "keras/old_frozen",
    "Loop": """
        paddle/dygraph_assigned_2 paddle/dygraph_assigned_3
        paddle/loop_dynamic_2 paddle/loop_until_small_2 paddle/loop_until_small_3""",
    "RNN_RELU both from h0, RNN_TANH both from h0": "paddle/rnn_simple",
    "RNN_RELU from h0, RNN_RELU from h0": "onnx/torch_relu_rnn",
    "RNN_TANH both from h0": "paddle/pir_initial_state",
    "RNN_TANH from h0": """
        onnx/keras_simple onnx/tensorflow1_rnn paddle/loop_own_cell_2 paddle/loop_own_cell_3
        paddle/loop_simple_2
        paddle/loop_simple_3""",
    "RNN_TANH from h0, RNN_TANH from h0": "onnx/keras2_rnn_elu_both",
    "Scan": """
        onnx/keras2_gru_linear paddle/loop_branch_in_loop_2 paddle/loop_branch_in_loop_3
        paddle/loop_static_2""",
    "Scan, Scan": "paddle/loop_lengths_2 paddle/loop_lengths_3",
    "Sigmoid": "paddle/pir_around",
}
MASKED = [
    f"{cell}{way}" for cell in ("GRU", "LBR_GRU", "LSTM", "RNN_TANH") for way in ("", " back")
]
BECOMES[", ".join(sorted([*MASKED * 2, *["RNN_TANH from h0"] * 2]))] = "keras/masked_steps"
WAYS = {
    "left2right": "",
    "right2left": " back",
    "bidirectional_concat": " both",
    "bidirectional_sum": " sum",
}
STEPS = {"If", "Loop", "Scan", "DynamicQuantizeLSTM", "Sigmoid"}


def layers(graph: Graph) -> str:
    parts = [node.op for node in graph.nodes if node.op in STEPS]
    for rnn in (Recurrent.of(node) for node in graph.nodes if node.op == "Rnn"):
        text = rnn.spec.cell.name + WAYS[rnn.spec.direction]
        text += f" x{rnn.spec.layers}" if rnn.spec.layers > 1 else ""
        text += " from h0" if any(rnn.states) else ""
        parts.append(f"{text} of a projection" if rnn.layers[0].layer is None else text)
    return ", ".join(sorted(parts))


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("name", RECORDED)
def test_a_recording_becomes_its_layers_and_is_met(name: str) -> None:
    """As the file has it, too, without a pass."""
    (expected,) = [text for text, names in BECOMES.items() if name in names.split()]
    assert layers(fused(name)) == expected
    plain: tuple[Graph, dict[str, Any]] = loaded(name), {"backend": "reference", "passes": ()}
    for graph, how in (plain, *((fused(name), {"backend": backend}) for backend in BACKENDS)):
        report = verify(graph, RECORDED[name] / "io.npz", **how)
        assert report.passed and report.outputs, (how, report.outputs)


PADDLES_REFUSALS = {
    "fc_relu": ["linear_rnn: the input is not a linear projection"],
    "running_weight": ["linear_rnn: weight 'scale_2' is computed at run time"],
    "shared_projection": ["linear_rnn: 'elementwise_add_4' has another user"] * 2,
    "two_levels": [
        "sequence_views: 'elementwise_add_4' does not come from 'one'",
        "sequence_views: 'gru_11' has another user",
        "linear_rnn: the input is not a linear projection",
    ],
}


@pytest.mark.parametrize("name", PADDLES_REFUSALS)
def test_a_pass_says_why_it_does_not_fire(name: str) -> None:
    refusals = fuse(loaded(f"paddle/{name}")).refusals
    assert [refusal.reason for refusal in refusals] == PADDLES_REFUSALS[name]


LACKS = {"keras/old_gates": "hardsigmoid", "paddle/relu_candidate": "relu"}
LACKS["paddle/tanh_gate"] = "tanh, tanh"
LACKS |= dict.fromkeys(("onnx/keras2_gru_before_relu", "onnx/keras2_gru_hard"), "hardsigmoid")
LACKS |= dict.fromkeys(("onnx/keras2_lstm_elu", "onnx/keras2_rnn_elu_both"), "elu")
LACKS |= {"onnx/keras2_masked_gru_hard": "hardsigmoid", "onnx/tensorflow1_lstm_relu": "relu"}
LACKS["onnx/tensorflow1_lstm_peepholes"] = "clip"
"""Functions that oneDNN lacks, and a clip."""


@pytest.mark.skipif("onednn" not in BACKENDS, reason="ONERNN_BACKENDS leaves onednn out")
@pytest.mark.parametrize("name", [name for name in RECORDED if name not in BECOMES[""].split()])
def test_a_layer_runs_on_onednn_or_tells_the_function_that_it_lacks(name: str) -> None:
    session = Session(fused(name), backend="onednn")
    for each in session.explained:
        if "reference" in each.kernel:
            assert LACKS[name] in each.why
        else:
            assert "oneDNN" in each.kernel and (name not in LACKS or "GRU" not in each.cell), each
    if name in LACKS:
        with pytest.raises(UnsupportedError, match=LACKS[name]):
            Session(fused(name), backend="onednn", strict=True)


SEEN = """
    paddle/two_levels paddle/embedding_crf paddle/bidirectional_states paddle/sentences
    mxnet/gluon_lengths torch/rows keras/cells onnx/tensorflow_scan""".split()


@pytest.mark.parametrize("name", SEEN)
def test_a_recording_that_differs_is_not_met(name: str) -> None:
    """In an output, at a time, or in where its sentences end."""
    folder, session = RECORDED[name], loaded(name)
    arrays = read_arrays(folder / "io.npz")
    for key, array in arrays.items():
        other = array.copy()
        if key.startswith("out__") and array.size:
            flat = other.reshape(-1)
            flat[0] += 1 if array.dtype.kind in "iu" else 1e-3 * (1 + np.abs(array).max())
        elif key.startswith("outlod__") and not key.endswith("__0") and len(array) > 2:
            other[1:-1] = 0 if other[1] else other[-1]
        else:
            continue
        wrong = {**arrays, key: other}
        assert not verify(session, wrong, diagnose=False, backend="reference").passed, key


TO_ONNX = [name for name in RECORDED if name != "paddle/dygraph_assigned_2"]
"""Without a list in a loop, which has no size before a run."""
OPSETS = {name: (13, 18, 22)[k % 3] for k, name in enumerate(TO_ONNX) if name.startswith("onnx/")}
OPSETS["onnx/torch_gru_dynamic"] = 18  # needs it


@pytest.mark.parametrize("name, opset", OPSETS.items())
def test_a_recording_comes_out_of_onnx_runtime(name: str, opset: int, tmp_path: Path) -> None:
    """Written as ONNX: by ONNX Runtime, and read again by us."""
    skip_if_saturated(name)
    converted(loaded(name), tmp_path / "m.onnx", RECORDED[name] / "io.npz", opset=opset)


@pytest.mark.parametrize("name", TO_ONNX)
def test_a_recording_is_written_in_the_lowest_opset_that_has_all_of_it(
    name: str, tmp_path: Path
) -> None:
    skip_if_saturated(name)
    model, file, recording = loaded(name), tmp_path / "m.onnx", RECORDED[name] / "io.npz"
    converted(model, file, recording)
    written = onnx.load(file)
    lowest = {each.domain: each.version for each in written.opset_import}[""]
    assert written.ir_version == {row[2]: row[1] for row in onnx.helper.VERSION_TABLE}[lowest]
    if lowest > min(IR_VERSIONS):
        before, inputs = file.read_bytes(), read_inputs(read_arrays(recording), model.inputs)
        with pytest.raises(UnsupportedError) as refused:
            convert(model, file, opset=lowest - 1, inputs=inputs)
        assert file.read_bytes() == before
        for refusal in refused.value.refusals:
            assert refusal.where and refusal.reason.endswith(f" needs opset {lowest}")


def skip_if_saturated(name: str) -> None:
    if SATURATES and name.startswith("onnx/onnxruntime_quantized"):
        pytest.skip(cut_off_by_onnx_runtime)


def test_the_recordings_are_there() -> None:
    assert len(RECORDED) >= 130
    assert sorted(RECORDED) == sorted(" ".join(BECOMES.values()).split())
    assert any((folder / "model.onnx.data").exists() for folder in RECORDED.values())
