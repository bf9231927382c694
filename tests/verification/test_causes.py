"""Each known fault, planted in a file, is named; and nothing is named where it is not so.

The files are ONNX, faults are planted in ONNX's layout. Where the reference is a recording, ONNX
Runtime made it from the sound file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support import planted
from support.planted import Arrays, blocks, changed, feed, model, read, recording, reordered

from onernn.verification.diagnosis.cause import ADVICE
from onernn.verification.references import Against
from onernn.verification.verifying import Report, verify

Pair = tuple[bytes, bytes]
FAULTS: dict[str, tuple[str, Callable[[], Pair]]] = {}
LBR = {"linear_before_reset": 1}
PATIENT, SHORT = 600.0, 1.0
"""Seconds of a search: as long as it takes, and where it finds nothing."""


def fault(cause: str) -> Callable[[Callable[[], Pair]], Callable[[], Pair]]:
    """The sound file and the one with the fault."""

    def register(function: Callable[[], Pair]) -> Callable[[], Pair]:
        FAULTS[function.__name__] = (cause, function)
        return function

    return register


def both(op: str, sound: Arrays, wrong: Arrays, **attributes: Any) -> Pair:
    return model(op, sound, **attributes), model(op, wrong, **attributes)


@fault("gates_swapped")
def update_and_reset_of_a_gru() -> Pair:
    arrays = planted.weights("GRU")
    return both("GRU", arrays, reordered(arrays, (1, 0, 2)))


@fault("gates_swapped")
def all_gates_of_a_gru_with_two_biases() -> Pair:
    arrays = planted.weights("GRU")
    return both("GRU", arrays, reordered(arrays, (2, 0, 1)), **LBR)


@fault("gates_swapped")
def forget_and_candidate_of_an_lstm_both_ways() -> Pair:
    arrays = planted.weights("LSTM", 2)
    return both("LSTM", arrays, reordered(arrays, (0, 1, 3, 2)))


@fault("gates_swapped")
def input_and_output_in_the_recurrent_weights_only() -> Pair:
    arrays = planted.weights("LSTM")
    return both("LSTM", arrays, reordered(arrays, (1, 0, 2, 3), "R"))


@fault("gates_swapped")
def update_and_reset_of_the_backward_direction_only() -> Pair:
    arrays = planted.weights("GRU", 2)
    wrong = reordered(arrays, (1, 0, 2))
    mixed = {k: np.stack([arrays[k][0], wrong[k][1]]) for k in arrays}
    return both("GRU", arrays, mixed)


@fault("update_sign")
def update_gate_negated() -> Pair:
    arrays = planted.weights("GRU")
    new = {k: arrays[k].copy() for k in arrays}
    for name, array in new.items():
        blocks(array)[:, 0] *= -1
        if name == "B":
            blocks(array)[:, 3] *= -1
    return both("GRU", arrays, new, **LBR)


@fault("update_sign")
def update_gate_negated_but_for_its_bias() -> Pair:
    arrays = planted.weights("GRU")
    new = {k: arrays[k].copy() for k in arrays}
    for name in "WR":
        blocks(new[name])[:, 0] *= -1
    return both("GRU", arrays, new)


@fault("reset_placement")
def reset_before_the_product() -> Pair:
    arrays = planted.weights("GRU")
    return model("GRU", arrays, **LBR), model("GRU", arrays)


@fault("reset_placement")
def reset_after_the_product() -> Pair:
    arrays = planted.weights("GRU", 2)
    return model("GRU", arrays), model("GRU", arrays, **LBR)


@fault("bias_merged")
def candidate_bias_outside_the_reset_product() -> Pair:
    arrays = planted.weights("GRU")
    bias = blocks(arrays["B"]).copy()
    bias[:, 2] += bias[:, 5]
    bias[:, 5] = 0
    return both("GRU", arrays, changed(arrays, B=bias.reshape(1, -1)), **LBR)


@fault("bias_changed")
def recurrent_bias_left_out() -> Pair:
    """A file keeps the sum of two biases: which of them is missing nobody can tell."""
    arrays = planted.weights("LSTM")
    bias = blocks(arrays["B"]).copy()
    bias[:, 4:] = 0
    return both("LSTM", arrays, changed(arrays, B=bias.reshape(1, -1)))


@fault("bias_doubled")
def the_bias_in_both_places() -> Pair:
    arrays = planted.weights("LSTM")
    bias = blocks(arrays["B"]).copy()
    bias[:, 4:] = 0
    twice = bias.copy()
    twice[:, 4:] = bias[:, :4]
    sound = changed(arrays, B=bias.reshape(1, -1))
    return both("LSTM", sound, changed(arrays, B=twice.reshape(1, -1)))


@fault("bias_doubled")
def input_bias_of_a_gru_twice() -> Pair:
    arrays = planted.weights("GRU")
    bias = blocks(arrays["B"]).copy()
    bias[:, :3] *= 2
    return both("GRU", arrays, changed(arrays, B=bias.reshape(1, -1)), **LBR)


@fault("h0_dropped")
def initial_states_not_connected() -> Pair:
    arrays = planted.weights("LSTM", 2)
    return model("LSTM", arrays), model("LSTM", arrays, states=False)


@fault("h0_dropped")
def initial_state_invented() -> Pair:
    arrays = planted.weights("GRU")
    return model("GRU", arrays, states=False), model("GRU", arrays)


@fault("mask_ignored")
def lengths_not_connected() -> Pair:
    arrays = planted.weights("GRU", 2)
    return model("GRU", arrays), model("GRU", arrays, lengths=False)


@fault("mask_ignored")
def lengths_invented() -> Pair:
    arrays = planted.weights("LSTM")
    return model("LSTM", arrays, lengths=False), model("LSTM", arrays)


@fault("reverse_padded")
def padded_rows_reversed() -> Pair:
    arrays = planted.weights("GRU", 2)
    made = [planted.separate(arrays, padded_reverse=wrong) for wrong in (False, True)]
    return made[0], made[1]


@fault("reverse_padded")
def sentences_reversed_where_rows_should_be() -> Pair:
    sound, wrong = padded_rows_reversed()
    return wrong, sound


@fault("clip_ignored")
def clip_not_carried_over() -> Pair:
    arrays = planted.weights("GRU")
    return model("GRU", arrays, clip=0.4), model("GRU", arrays)


@fault("clip_ignored")
def clip_invented() -> Pair:
    arrays = planted.weights("LSTM")
    return model("LSTM", arrays), model("LSTM", arrays, clip=0.4)


@fault("weight_transposed")
def recurrent_weight_transposed() -> Pair:
    arrays = planted.weights("LSTM")
    turned = np.swapaxes(blocks(arrays["R"]), 2, 3).reshape(arrays["R"].shape)
    return both("LSTM", arrays, changed(arrays, R=turned))


@fault("weight_transposed")
def recurrent_weight_of_an_rnn_transposed() -> Pair:
    arrays = planted.weights("RNN", 2)
    return both("RNN", arrays, changed(arrays, R=arrays["R"].swapaxes(1, 2)))


@fault("direction_swapped")
def weights_of_both_directions_exchanged() -> Pair:
    arrays = planted.weights("GRU", 2)
    return both("GRU", arrays, {k: a[::-1].copy() for k, a in arrays.items()})


@fault("direction_swapped")
def run_from_the_wrong_end() -> Pair:
    arrays = planted.weights("LSTM")
    return model("LSTM", arrays), model("LSTM", arrays, reverse=True)


def against_the_sound_file(sound: bytes, wrong: bytes) -> Report:
    return verify(read(wrong), against=Against(read(sound)), seconds=PATIENT)


def against_a_recording(sound: bytes, wrong: bytes, seconds: float = PATIENT) -> Report:
    taken = {value.name: value for value in read(wrong).inputs}
    directions = taken["h0"].shape[0]  # type: ignore[index]
    recorded = recording(sound, feed("c0" in taken, directions or 1))
    return verify(read(wrong), recorded, seconds=seconds)


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("reference", [against_the_sound_file, against_a_recording])
def test_a_planted_fault_is_named(name: str, reference: Callable[[bytes, bytes], Report]) -> None:
    wanted, make = FAULTS[name]
    report = reference(*make())
    assert not report.passed
    assert report.cause is not None, "no cause was found"
    assert report.cause.id == wanted, report.cause.text
    assert report.cause.after < 1e-5 < 1e-2 < report.cause.before
    assert report.cause.advice == ADVICE[wanted]
    assert report.cause.evidence == "proved"


def test_sound_files_pass_and_nothing_is_named() -> None:
    for sound in {make()[0] for _, make in FAULTS.values()}:
        for reference in (against_the_sound_file, against_a_recording):
            report = reference(sound, sound)
            assert report.passed and report.cause is None


def test_texts_name_gates_and_layers_as_a_reader_knows_them() -> None:
    report = against_the_sound_file(*update_and_reset_of_a_gru())
    text = "matches when gates u (update) and r (reset) are swapped in GRU that makes 'Y', forward"
    assert report.cause is not None and report.cause.text == text
    report = against_the_sound_file(*update_and_reset_of_the_backward_direction_only())
    assert report.cause is not None and report.cause.text.endswith("GRU that makes 'Y', backward")
    report = against_the_sound_file(*forget_and_candidate_of_an_lstm_both_ways())
    assert report.cause is not None
    assert "gates f (forget) and c (candidate)" in report.cause.text
    assert report.cause.text.endswith("LSTM that makes 'Y', both directions")


def test_a_fault_that_no_recording_tells_is_named_where_both_models_are_known() -> None:
    arrays = planted.weights("RNN", 2)
    noise = np.random.default_rng(5).normal(0, 0.1, arrays["R"].shape)
    pair = both("RNN", arrays, changed(arrays, R=arrays["R"] + noise))
    report = against_a_recording(*pair, seconds=SHORT)
    assert not report.passed and not report.causes
    report = against_the_sound_file(*pair)
    assert report.cause is not None and report.cause.id == "weights_changed"
    assert "recurrent weights" in report.cause.text and report.cause.evidence == "proved"


def test_a_wrong_dense_layer_is_no_fault_of_a_recurrent_one() -> None:
    given = feed(False, 1)
    recorded = recording(model("GRU", planted.weights("GRU")), given)
    recorded["out__Y"] = recorded["out__Y"] * 1.01
    report = verify(read(model("GRU", planted.weights("GRU"))), recorded, seconds=SHORT)
    assert not report.passed and report.cause is None


def test_what_rounding_makes_is_no_fault() -> None:
    arrays = planted.weights("LSTM", 2)
    rng = np.random.default_rng(2)
    eps = np.finfo(np.float32).eps
    near = {k: a * (1 + eps * rng.choice([-1, 1], a.shape)) for k, a in arrays.items()}
    assert against_the_sound_file(*both("LSTM", arrays, changed(near))).passed


def test_a_model_is_at_fault_in_what_it_has_and_the_reference_in_what_the_model_has() -> None:
    sound, wrong = candidate_bias_outside_the_reset_product()
    report = against_the_sound_file(wrong, sound)  # the model is sound here
    assert report.cause is not None and report.cause.id == "bias_merged"
    assert report.cause.text.startswith("matches when both biases of the candidate are")
