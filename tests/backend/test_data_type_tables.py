"""The tables of data types, and the types that primitives are asked for, f16's among them.

No machine that these tests ran on has f16: what does not need the CPU is tested here.
"""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.layers import prepare_on, random_weights

from onernn import Cell, RnnSpec, UnsupportedError
from onernn.backend import open_backend
from onernn.backend.onednn.backend import refusal
from onernn.backend.onednn.kernels import Shape, descriptors, plain_weights
from onernn.backend.onednn.library import load_library
from onernn.backend.onednn.memory import narrow, widen
from onernn.backend.onednn.precision import GUIDE, OURS, PRECISIONS, SPECIFICATION, Row
from onernn.backend.onednn.training import TRAINED
from onernn.ir.weights import layers_of

# As the documents print them: propagation, cells, input, recurrent, weights, bias, output, and c,
# which note (1) tells.
PRINTED = {
    "guide": """
        forward and backward | every cell                | f32  f32  f32  f32  f32    | f32
        forward and backward | all but projections       | bf16 bf16 bf16 f32  bf16   | f32
        forward              | all but projections       | f16  f16  f16  f16  f16    | f16
        forward inference    | LSTM, LSTMP, GRU          | u8   u8   s8   f32  u8,f32 | f32
        forward inference    | LSTM, LSTMP               | s8   s8   s8   f32  s8,f32 | f32
    """,
    "specification": """
        forward and backward | every cell                | f32  f32  f32  f32  f32    | f32
        forward and backward | all but projections       | bf16 bf16 bf16 f32  bf16   | f32
        forward              | all but projections       | f16  f16  f16  f16  f16    | f32
        forward inference    | LSTM                      | u8   u8   s8   f32  u8,f32 | f32
    """,
}
CELLS: dict[str, tuple[Any, bool, bool]] = {  # cells, peephole, projection
    "every cell": ("all", True, True),
    "all but projections": ("all", True, False),
    "LSTM, LSTMP, GRU": (["LSTM", "GRU"], False, True),
    "LSTM, LSTMP": (["LSTM"], False, True),
    "LSTM": (["LSTM"], False, False),
}


@pytest.mark.parametrize("document", ["guide", "specification"])
def test_the_tables_are_those_that_the_documents_print(document: str) -> None:
    wanted = {}
    for line in PRINTED[document].strip().splitlines():
        propagation, cells, types, cell_state = (part.strip() for part in line.split("|"))
        data, recurrent, weights, bias, output = types.split()
        rest = (data, recurrent, cell_state, weights, bias, output.split(","))
        wanted[data] = Row(propagation, *CELLS[cells], *rest)  # type: ignore[arg-type]
    assert (GUIDE if document == "guide" else SPECIFICATION) == wanted


def test_a_row_is_about_the_layers_that_it_names() -> None:
    plain = {"peephole": False, "projection": False, "training": False}
    assert GUIDE["u8"].has(Cell.GRU, **plain) and not GUIDE["u8"].has(Cell.LBR_GRU, **plain)
    assert not GUIDE["u8"].has(Cell.LSTM, **plain | {"peephole": True})
    assert GUIDE["u8"].has(Cell.LSTM, **plain | {"projection": True})
    assert not SPECIFICATION["u8"].has(Cell.LSTM, **plain | {"projection": True})
    assert GUIDE["bf16"].has(Cell.AUGRU, **plain | {"training": True})
    assert not GUIDE["f16"].has(Cell.AUGRU, **plain | {"training": True})


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_a_primitive_is_asked_for_the_types_of_the_guides_row(dtype: str) -> None:
    """f16 has bias and cell state in f16; peepholes are float32 in every row."""
    library, row = load_library(), GUIDE[dtype]
    spec = RnnSpec(Cell.LSTM, 4, 5, peephole=row.peephole)
    (weights,) = layers_of(spec, random_weights(spec, 1))
    plain = plain_weights(library, spec, weights, PRECISIONS[dtype])
    wanted = descriptors(library, spec, plain, PRECISIONS[dtype], Shape(2, 3, 4, 5))
    types = {name: layout.dtype for name, layout in wanted.items()}
    assert types.pop("weights_peephole", "f32") == "f32"
    assert types.pop("dst_layer") in row.output
    h, c = dict.fromkeys(("src_iter", "dst_iter"), row.recurrent), row.cell_state
    assert types == {
        "src_layer": row.data,
        **h,
        **dict.fromkeys(("src_iter_c", "dst_iter_c"), c),
        **dict.fromkeys(("weights_layer", "weights_iter"), row.weights),
        "bias": row.bias,
    }


def test_the_attention_has_the_type_of_the_data() -> None:
    library, spec = load_library(), RnnSpec(Cell.AUGRU, 4, 5)
    (weights,) = layers_of(spec, random_weights(spec, 1))
    for dtype in ("f32", "bf16", "f16"):
        plain = plain_weights(library, spec, weights, PRECISIONS[dtype])
        wanted = descriptors(library, spec, plain, PRECISIONS[dtype], Shape(2, 3, 4, 5))
        assert wanted["augru_attention"].dtype == dtype


NUMBERS = [0.0, -0.0, 1.0, -1 / 3, 1e-8, 5.9e-8, 65504.0, 2049.0, 2051.0, np.pi, -6.1e-5]


def test_f16_is_the_nearest_number_of_16_bits_halves_to_even() -> None:
    """`struct` rounds as IEEE 754 says; beyond 65504 lies infinity."""
    given = np.array(NUMBERS, np.float32)
    bits = narrow(given, "f16").view(np.uint16)
    assert bits.tolist() == [struct.unpack("<H", struct.pack("<e", x))[0] for x in given.tolist()]
    back = widen(narrow(given, "f16"), "f16")
    assert back.dtype == np.float32
    assert back.tolist() == [struct.unpack("<e", struct.pack("<e", x))[0] for x in given.tolist()]
    beyond = widen(narrow(np.array([7e4, -1e9], "f4"), "f16"), "f16")
    assert beyond.tolist() == [np.inf, -np.inf]


def test_the_bias_of_an_f16_layer_is_rounded_to_f16_and_that_of_bf16_stays() -> None:
    library, spec = load_library(), RnnSpec(Cell.LBR_GRU, 4, 5)
    (weights,) = layers_of(spec, random_weights(spec, 1))
    assert weights.bias is not None
    wide = plain_weights(library, spec, weights, PRECISIONS["bf16"])["bias"]
    assert wide.data is not None and wide.data.tobytes() == weights.bias.tobytes()
    half = plain_weights(library, spec, weights, PRECISIONS["f16"])["bias"]
    packed = struct.pack(f"<{weights.bias.size}e", *weights.bias.reshape(-1).tolist())
    assert half.data is not None and half.data.tobytes() == packed


@pytest.mark.parametrize("version, has", [("3.2.0", False), ("3.5.9", False), ("3.6.0", True)])
def test_f16_needs_libdnnl_3_6_or_newer(version: str, has: bool) -> None:
    spec = RnnSpec(Cell.LBR_GRU, 4, 5)
    layers = layers_of(spec, random_weights(spec, 1))
    library = replace(load_library(), version=version)
    told = refusal(library, spec, layers, "f16")
    assert told == ("" if has else told) and ("needs libdnnl 3.6 or newer" in told) != has
    assert refusal(library, spec, layers, "bf16") == ""
    assert OURS["f16"].is_in("3.13.2") and OURS["f32"].is_in("3.2.0")


@pytest.mark.parametrize(
    "spec, why",
    [
        (RnnSpec(Cell.GRU, 4, 5), "wrong from 32 units on"),
        (RnnSpec(Cell.AUGRU, 4, 5), "wrong from 32 units on"),
        (RnnSpec(Cell.LSTM, 4, 5, projection_size=3), "does not run them"),
    ],
)
def test_f16_that_the_library_has_wrong_is_refused(spec: RnnSpec, why: str) -> None:
    layers = layers_of(spec, random_weights(spec, 1))
    library = replace(load_library(), version="3.6.2")
    assert why in refusal(library, spec, layers, "f16")
    assert refusal(library, spec, layers, "f32") == ""


def test_what_is_not_here_runs_on_numpy_and_says_why_or_is_refused() -> None:
    spec = RnnSpec(Cell.GRU, 4, 5)
    weights = random_weights(spec, 1)
    backend = open_backend("onednn")
    layer = backend.prepare(spec, weights, dtype="f16")
    if layer.backend == "onednn":
        pytest.skip("this CPU has f16")
    assert layer.backend == "reference" and "f16" in layer.why
    with pytest.raises(UnsupportedError, match="f16.*strict=True"):
        backend.prepare(spec, weights, dtype="f16", strict=True)


@pytest.mark.parametrize("backend", ["onednn", "kernels"])
def test_s8_is_refused_with_the_reason(backend: str) -> None:
    """So are unknown types, without one."""
    spec = RnnSpec(Cell.LSTM, 4, 5)
    for dtype, why in (("s8", ".*negative states"), ("f64", ""), ("int4", "")):
        with pytest.raises(UnsupportedError, match=f"dtype '{dtype}': .* f32, bf16, f16, u8{why}"):
            prepare_on(backend, spec, 1, dtype=dtype)


def test_what_trains_is_what_goes_backward_in_the_guide() -> None:
    assert set(TRAINED) == {d for d, row in GUIDE.items() if "backward" in row.propagation}
    assert set(TRAINED) == {"f32", "bf16"}
