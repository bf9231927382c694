"""What oneDNN's guide and the oneAPI specification get wrong or leave open, measured.

Each line of the page for users (design/guide-references.md) about which layers and types the
library takes is a line here. Wrong numbers are in test_wrong_numbers.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.checking import check_layer
from support.layers import random_state, random_weights
from support.machine import needs_vnni
from support.raw_creation import answer, shapes

from onernn import Cell, RnnSpec, ShapeError
from onernn.backend import open_backend
from onernn.backend.onednn.library import load_library

LSTM = shapes(Cell.LSTM)
TAKEN, UNIMPLEMENTED, INVALID = "success", "unimplemented", "invalid_arguments"


def without(wanted: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: shape for name, shape in wanted.items() if name not in names}


def typed(data: str, weights: str, **more: str) -> dict[str, str]:
    """Types as a row of the tables combines them: bias and cell state in f32."""
    named = ("src_layer", "src_iter", "dst_iter", "dst_layer", "augru_attention")
    matrices = ("weights_layer", "weights_iter", "weights_projection")
    return {**dict.fromkeys(named, data), **dict.fromkeys(matrices, weights), **more}


has_bf16 = any(isa in load_library().effective_isa for isa in ("bf16", "fp16", "amx", "avx512"))
needs_bf16 = pytest.mark.skipif(not has_bf16, reason="this CPU has no bf16")


def test_a_bias_is_not_optional_although_the_texts_say_so() -> None:
    assert answer(Cell.LSTM, LSTM) == TAKEN
    for cell in Cell:
        assert answer(cell, without(shapes(cell), "bias")) == UNIMPLEMENTED


def test_initial_and_final_states_are_optional_but_h_and_c_go_together() -> None:
    assert answer(Cell.LSTM, without(LSTM, "src_iter", "src_iter_c")) == TAKEN
    assert answer(Cell.LSTM, without(LSTM, "dst_iter", "dst_iter_c")) == TAKEN
    for name in ("src_iter", "src_iter_c", "dst_iter", "dst_iter_c"):
        assert answer(Cell.LSTM, without(LSTM, name)) == INVALID


@pytest.mark.parametrize("direction", ["left2right", "bidirectional_sum", "bidirectional_concat"])
def test_stacked_layers_read_the_channels_of_one_direction(direction: str) -> None:
    """Not those of dst_layer, which has twice as many where directions are joined."""
    for I, wanted in ((8, TAKEN), (16, INVALID), (6, INVALID)):  # noqa: E741
        made = shapes(Cell.LSTM, L=2, I=I, O=8, direction=direction)
        assert answer(Cell.LSTM, made, direction=direction) == wanted
    spec = RnnSpec(Cell.LSTM, 16, 8, layers=2, stacking="onednn", direction=direction)  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="needs src_layer = dst_layer in every direction, 8"):
        open_backend("onednn").prepare(spec, random_weights(spec, 0))


def test_at_one_step_only_cells_that_add_nothing_of_the_old_state_take_another_width() -> None:
    for cell, wanted in ((Cell.LSTM, TAKEN), (Cell.RNN_TANH, TAKEN), (Cell.GRU, INVALID)):
        assert answer(cell, shapes(cell, T=1, R=5)) == wanted
        assert answer(cell, shapes(cell, T=2, R=5)) == INVALID
    for cell in (Cell.LBR_GRU, Cell.AUGRU, Cell.LBR_AUGRU):
        assert answer(cell, shapes(cell, T=1, R=5)) == INVALID


def test_a_cell_state_has_the_units_and_not_the_channels_of_dst_iter() -> None:
    made = shapes(Cell.LSTM, projection=4, R=4)
    assert made["src_iter_c"][-1] == 8 and made["dst_iter"][-1] == 4
    assert answer(Cell.LSTM, made) == TAKEN
    narrow = dict.fromkeys(("src_iter_c", "dst_iter_c"), (1, 1, 2, 4))
    assert answer(Cell.LSTM, made | narrow) == INVALID


def test_joined_directions_have_twice_the_channels_of_dst_iter() -> None:
    both = {"direction": "bidirectional_concat"}
    made = shapes(Cell.GRU, **both)  # type: ignore[arg-type]
    assert answer(Cell.GRU, made, **both) == TAKEN  # type: ignore[arg-type]
    assert answer(Cell.GRU, made | {"dst_layer": (3, 2, 8)}, **both) == INVALID  # type: ignore[arg-type]


def test_attention_cells_run_left_to_right_in_one_layer_only_in_the_library() -> None:
    """Ours run each way, in stacks, step by step."""
    for cell in (Cell.AUGRU, Cell.LBR_AUGRU):
        assert answer(cell, shapes(cell)) == TAKEN
        assert answer(cell, shapes(cell, L=2)) == INVALID
        for way in ("right2left", "bidirectional_sum", "bidirectional_concat"):
            assert answer(cell, shapes(cell, direction=way), direction=way) == INVALID
        spec = RnnSpec(cell, 5, 6, layers=2, direction="bidirectional_concat")
        rng = np.random.default_rng(0)
        x = rng.uniform(-1, 1, (4, 3, 5)).astype(np.float32)
        a = rng.uniform(0, 1, (4, 3, 1)).astype(np.float32)
        weights = random_weights(spec, 0)
        layer = open_backend("onednn").prepare(spec, weights, strict=True)
        check_layer(layer, spec, weights, x, random_state(spec, 3, 0), a)


def test_an_attention_that_is_missing_is_taken_by_the_library_and_refused_by_us() -> None:
    assert answer(Cell.AUGRU, without(shapes(Cell.AUGRU), "augru_attention")) == TAKEN
    wide = shapes(Cell.AUGRU) | {"augru_attention": (3, 2, 8)}
    assert answer(Cell.AUGRU, wide) == INVALID
    spec = RnnSpec(Cell.AUGRU, 8, 8)
    layer = open_backend("onednn").prepare(spec, random_weights(spec, 0))
    with pytest.raises(ShapeError, match="attention: AUGRU needs attention"):
        layer.run(np.zeros((3, 2, 8), np.float32))


@needs_bf16
def test_bf16_takes_more_types_than_its_row_has_and_peepholes_in_f32_alone() -> None:
    for bias in ("f32", "bf16"):
        for c in ("f32", "bf16"):
            more = {"bias": bias, "src_iter_c": c, "dst_iter_c": c}
            assert answer(Cell.LSTM, LSTM, types=typed("bf16", "bf16", **more)) == TAKEN
    peephole = shapes(Cell.LSTM, peephole=True)
    assert answer(Cell.LSTM, peephole, types=typed("bf16", "bf16")) == TAKEN
    narrow = typed("bf16", "bf16", weights_peephole="bf16")
    assert answer(Cell.LSTM, peephole, types=narrow) == UNIMPLEMENTED
    wide = typed("bf16", "bf16", dst_layer="f32")
    assert answer(Cell.LSTM, LSTM, types=wide) == UNIMPLEMENTED


@needs_bf16
@pytest.mark.parametrize("kind", ["forward_inference", "forward_training"])
def test_bf16_takes_a_projection_although_the_texts_say_that_it_is_not_there(kind: str) -> None:
    """Wrong in the layout that it asks for; test_a_narrow_projection_is_read_right."""
    made = shapes(Cell.LSTM, projection=8)
    assert answer(Cell.LSTM, made, types=typed("bf16", "bf16"), kind=kind) == TAKEN


@needs_vnni
def test_u8_takes_gru_and_projections_as_the_guide_says_and_states_in_f32_too() -> None:
    for output in ("u8", "f32"):
        types = typed("u8", "s8", dst_layer=output)
        assert answer(Cell.LSTM, LSTM, types=types) == TAKEN
        assert answer(Cell.GRU, shapes(Cell.GRU), types=types) == TAKEN
        assert answer(Cell.LSTM, shapes(Cell.LSTM, projection=8), types=types) == TAKEN
        wide = types | {"src_iter": "f32", "dst_iter": "f32"}
        assert answer(Cell.LSTM, LSTM, types=wide) == TAKEN
        for cell in (Cell.RNN_TANH, Cell.LBR_GRU, Cell.AUGRU, Cell.LBR_AUGRU):
            assert answer(cell, shapes(cell), types=types) == UNIMPLEMENTED
        peephole = shapes(Cell.LSTM, peephole=True)
        assert answer(Cell.LSTM, peephole, types=types) == UNIMPLEMENTED
        training = answer(Cell.LSTM, LSTM, types=types, kind="forward_training")
        assert training == UNIMPLEMENTED


@needs_vnni
def test_s8_is_taken_without_amx_although_the_guide_says_that_it_needs_it() -> None:
    """And gives wrong numbers; test_negative_states_survive_int8."""
    if "amx" in load_library().effective_isa:
        pytest.skip("this CPU has AMX")
    assert answer(Cell.LSTM, LSTM, types=typed("s8", "s8")) == TAKEN


def test_weights_in_the_layouts_of_the_other_row_are_refused_by_the_library() -> None:
    """ldgoi and ldoi go backward only: the specification names them for any way."""
    for tag, wanted in (("ldigo", TAKEN), ("ldgoi", UNIMPLEMENTED)):
        tags = {"weights_layer": tag, "weights_iter": tag}
        assert answer(Cell.LSTM, LSTM, tags=tags) == wanted
    made = shapes(Cell.LSTM, projection=8)
    for tag, wanted in (("ldio", TAKEN), ("ldoi", UNIMPLEMENTED)):
        assert answer(Cell.LSTM, made, tags={"weights_projection": tag}) == wanted


@needs_vnni
def test_plain_weights_are_refused_in_int8_although_the_table_has_them() -> None:
    tags = {"weights_layer": "ldigo", "weights_iter": "ldigo"}
    assert answer(Cell.LSTM, LSTM, types=typed("u8", "s8"), tags=tags) == UNIMPLEMENTED


def test_data_may_be_ntc_or_tnc_or_either() -> None:
    for source, target in (("ntc", "ntc"), ("tnc", "tnc"), ("ntc", "tnc"), ("any", "any")):
        assert answer(Cell.LSTM, LSTM, tags={"src_layer": source, "dst_layer": target}) == TAKEN


def test_an_lbr_bias_has_a_fourth_row_also_in_the_library() -> None:
    for cell in (Cell.LBR_GRU, Cell.LBR_AUGRU):
        assert shapes(cell)["bias"][2] == 4
        three = shapes(cell) | {"bias": (1, 1, 3, 8)}
        assert (answer(cell, shapes(cell)), answer(cell, three)) == (TAKEN, INVALID)


def test_the_execution_arguments_are_called_otherwise_in_the_headers(repo: Path) -> None:
    """The guide says DNNL_WORKSPACE, and both texts leave attention and scratchpad out."""
    declared = (repo / "src" / "onernn" / "backend" / "onednn" / "dnnl.cdef.h").read_text()
    for name in ("WORKSPACE", "AUGRU_ATTENTION", "SCRATCHPAD", "DIFF_AUGRU_ATTENTION"):
        assert f"DNNL_ARG_{name} " in declared
    assert "DNNL_WORKSPACE" not in declared


def test_the_findings_are_told_with_tests_that_there_are(repo: Path) -> None:
    page = (repo / "design" / "guide-references.md").read_text()
    measured = [name for name in globals() if name.startswith("test_")][:-1]
    assert [name for name in measured if f"`{name}`" not in page] == []
