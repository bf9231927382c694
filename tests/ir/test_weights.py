"""`RnnWeights`: read-only, copied from what a caller can still write to, checked by name."""

from __future__ import annotations

import ctypes
import itertools
import re
from dataclasses import FrozenInstanceError, fields, replace
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onernn.ir.errors import ShapeError
from onernn.ir.spec import Cell, RnnSpec
from onernn.ir.weights import RnnWeights, layers_of

NAMES = ("layer", "iter", "bias", "peephole", "projection")
FULL = RnnSpec(
    Cell.LSTM,
    3,
    5,
    layers=2,
    direction="bidirectional_concat",
    projection_size=2,
    peephole=True,
    stacking="onednn",
)
# Spelled out by hand, from the layouts in oneDNN's guide: L=2, D=2, I=3, R=2, G=4, O=5.
SHAPES = {
    "layer": (2, 2, 3, 4, 5),
    "iter": (2, 2, 2, 4, 5),
    "bias": (2, 2, 4, 5),
    "peephole": (2, 2, 3, 5),
    "projection": (2, 2, 5, 2),
}


def arrays(dtype: Any = np.float32) -> dict[str, np.ndarray]:
    """Fresh writable arrays for FULL, every number in them another."""
    found, start = {}, 0
    for name, shape in SHAPES.items():
        size = int(np.prod(shape))
        found[name] = np.arange(start, start + size).reshape(shape).astype(dtype)
        start += size
    return found


def test_names_are_all_there_are() -> None:
    assert tuple(f.name for f in fields(RnnWeights)) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_arrays_are_read_only_and_do_not_follow_the_caller(name: str) -> None:
    given = arrays()
    weights = RnnWeights(**given)
    expected = given[name].tolist()
    given[name][:] = -1
    kept = getattr(weights, name)
    assert kept.tolist() == expected
    assert kept.dtype == np.float32
    assert kept.flags.c_contiguous
    with pytest.raises(ValueError, match="read-only"):
        kept[:] = 0
    assert given[name].flags.writeable  # the caller's own array is left as it was


def of_array(numbers: np.ndarray) -> tuple[np.ndarray, Any]:
    memory = numbers.copy()
    return memory.view(), memoryview(memory).cast("B")


def of_bytearray(numbers: np.ndarray) -> tuple[np.ndarray, Any]:
    memory = bytearray(numbers.tobytes())
    return np.frombuffer(memoryview(memory).toreadonly(), numbers.dtype), memory


def of_mapping(numbers: np.ndarray) -> tuple[np.ndarray, Any]:
    memory = mmap(-1, numbers.nbytes)
    memory[:] = numbers.tobytes()
    return np.frombuffer(memoryview(memory).toreadonly(), numbers.dtype), memory


def of_ctypes(numbers: np.ndarray) -> tuple[np.ndarray, Any]:
    memory = (ctypes.c_char * numbers.nbytes).from_buffer_copy(numbers.tobytes())
    return np.frombuffer(memory, numbers.dtype), memory


def of_dlpack(numbers: np.ndarray) -> tuple[np.ndarray, Any]:
    memory = numbers.copy()
    return np.from_dlpack(memory), memoryview(memory).cast("B")


@pytest.mark.parametrize("owned", [of_array, of_bytearray, of_mapping, of_ctypes, of_dlpack])
def test_a_read_only_view_of_memory_of_others_does_not_follow_it(owned: Any) -> None:
    given = arrays()
    expected = given["iter"].copy()
    view, memory = owned(given["iter"].reshape(-1))
    view.flags.writeable = False
    weights = RnnWeights(**{**given, "iter": view.reshape(SHAPES["iter"])})
    memory[: expected.nbytes] = bytes(expected.nbytes)
    np.testing.assert_array_equal(view, 0)  # which is the same memory
    np.testing.assert_array_equal(weights.iter, expected)


def test_arrays_of_bytes_and_of_mapped_files_are_not_copied(tmp_path: Path) -> None:
    given = arrays()
    file = tmp_path / "numbers"
    file.write_bytes(given["iter"].tobytes())
    with file.open("rb") as opened:
        mapped = mmap(opened.fileno(), 0, access=ACCESS_READ)
    for memory in (file.read_bytes(), mapped):
        view = np.frombuffer(memory, np.float32).reshape(SHAPES["iter"])
        assert np.shares_memory(RnnWeights(**{**given, "iter": view}).iter, view)


def test_arrays_that_nobody_can_write_to_are_not_copied() -> None:
    weights = RnnWeights(**arrays())
    again = replace(weights)
    for name in NAMES:
        assert np.shares_memory(getattr(again, name), getattr(weights, name)), name


def test_arrays_of_any_strides_come_out_contiguous() -> None:
    given = arrays()
    weights = RnnWeights(**{k: a.T.copy().T for k, a in given.items()})
    for name in NAMES:
        kept = getattr(weights, name)
        assert kept.flags.c_contiguous
        assert kept.tolist() == given[name].tolist()


def test_weights_cannot_be_exchanged() -> None:
    weights = RnnWeights(**arrays())
    with pytest.raises(FrozenInstanceError):
        weights.bias = None  # type: ignore[misc]


def test_float64_is_kept() -> None:
    weights = RnnWeights(**arrays(np.float64))
    assert {getattr(weights, name).dtype for name in NAMES} == {np.dtype(np.float64)}


# An array in place of the one that fits, and what the message says of it.
WRONG = [
    *((n, lambda a, d=d: a.astype(d), d) for n in NAMES for d in ("float16", "int64", ">f4")),
    *((n, lambda a: a.astype(np.float64), "float64") for n in NAMES if n != "iter"),
    *((n, lambda a: a[0], str(SHAPES[n][1:])) for n in NAMES),
    *(
        (n, lambda a, k=k: np.concatenate([a] * 2, axis=k), str(SHAPES[n]))
        for n in NAMES
        for k in range(len(SHAPES[n]))
    ),
    *((n, lambda _: None, "object" if n == "iter" else "none") for n in NAMES[1:] if n != "bias"),
]


@pytest.mark.parametrize("name, change, told", WRONG)
def test_arrays_that_do_not_fit_are_named(name: str, change: Any, told: str) -> None:
    with pytest.raises(ShapeError, match=rf"^weights {name}: expected .*{re.escape(told)}"):
        RnnWeights(**{**arrays(), name: change(arrays()[name])}).check(FULL)


@pytest.mark.parametrize("name", ["peephole", "projection"])
def test_check_refuses_what_the_spec_does_not_have(name: str) -> None:
    square = {**arrays(), "iter": np.zeros((2, 2, 5, 4, 5), np.float32)}
    given = square if name == "projection" else arrays()
    without = {"peephole": False} if name == "peephole" else {"projection_size": None}
    with pytest.raises(ShapeError, match=f"^weights {name}: expected none"):
        RnnWeights(**given).check(replace(FULL, **without))


def test_weights_that_fit_pass() -> None:
    RnnWeights(**arrays()).check(FULL)
    RnnWeights(**{**arrays(), "bias": None}).check(FULL)  # type: ignore[arg-type]


@pytest.mark.parametrize("cell", Cell, ids=lambda cell: cell.name)
def test_each_cell_has_its_own_gates_and_rows_of_bias(cell: Cell) -> None:
    gates = {"lstm": 4, "gru": 3}.get(cell.value.split("_")[-1], 3 if "gru" in cell.value else 1)
    rows = gates + (1 if "lbr" in cell.value else 0)
    spec = RnnSpec(cell, 3, 5)

    def weights(gates: int, rows: int) -> RnnWeights:
        shapes = (1, 1, 3, gates, 5), (1, 1, 5, gates, 5), (1, 1, rows, 5)
        return RnnWeights(*(np.zeros(shape, np.float32) for shape in shapes))

    weights(gates, rows).check(spec)
    with pytest.raises(ShapeError, match=rf"weights bias: expected \(1, 1, {rows}, 5\)"):
        weights(gates, rows + 1).check(spec)
    with pytest.raises(ShapeError, match=rf"weights layer: expected \(1, 1, 3, {gates}, 5\)"):
        weights(gates + 1, rows).check(spec)


def test_projected_input_is_as_wide_as_all_gates() -> None:
    weights = RnnWeights(None, np.zeros((1, 1, 5, 3, 5), np.float32))
    weights.check(RnnSpec(Cell.GRU, 15, 5))
    with pytest.raises(ShapeError, match=r"input_size: .*G\*O = 15 .*, got 3"):
        weights.check(RnnSpec(Cell.GRU, 3, 5))


@pytest.mark.parametrize("left_out", [(), ("bias",), ("layer", "bias", "peephole", "projection")])
def test_part_is_one_layer_and_direction(left_out: tuple[str, ...]) -> None:
    given = {name: None if name in left_out else array for name, array in arrays().items()}
    weights = RnnWeights(**given)  # type: ignore[arg-type]
    for layer, direction in itertools.product(range(2), repeat=2):
        part = weights.part(layer, direction)
        for name, array in given.items():
            got = getattr(part, name)
            if array is None:
                assert got is None
                continue
            assert got.shape == (1, 1, *array.shape[2:])
            assert got[0, 0].tolist() == array[layer][direction].tolist()
            assert np.shares_memory(got, getattr(weights, name))
            assert not got.flags.writeable


def test_of_layer_is_one_layer_with_both_directions() -> None:
    given = arrays()
    weights = RnnWeights(**given)
    for layer in range(2):
        one = weights.of_layer(layer)
        one.check(replace(FULL, layers=1))
        for name, array in given.items():
            assert getattr(one, name).tolist() == [array[layer].tolist()]


@pytest.mark.parametrize("place", [(2, 0), (0, 2), (-1, 0)], ids=str)
def test_a_part_that_is_not_there_is_refused(place: tuple[int, int]) -> None:
    with pytest.raises((IndexError, ShapeError)):  # a slice would be empty, silently
        RnnWeights(**arrays()).part(*place)


def stack_of(*input_sizes: int, directions: int = 1) -> list[RnnWeights]:
    """One-layer GRU weights, five units, layer n filled with n."""
    return [
        RnnWeights(
            np.full((1, directions, size, 3, 5), n, np.float32),
            np.full((1, directions, 5, 3, 5), n, np.float32),
        )
        for n, size in enumerate(input_sizes)
    ]


def test_layers_of_a_list_may_differ_in_their_input() -> None:
    spec = RnnSpec(Cell.GRU, 3, 5, layers=3, direction="bidirectional_concat")
    stack = stack_of(3, 10, 10, directions=2)
    assert layers_of(spec, stack) == tuple(stack)
    with pytest.raises(ShapeError, match=r"weights layer: expected \(1, 2, 10, 3, 5\), got .* 5,"):
        layers_of(spec, stack_of(3, 10, 5, directions=2))
    with pytest.raises(ShapeError, match="weights: expected 3 layers, got 2"):
        layers_of(spec, stack[:2])


def test_layers_of_one_array_are_taken_apart() -> None:
    spec = RnnSpec(Cell.GRU, 5, 5, layers=2)
    whole = RnnWeights(
        *(np.concatenate([getattr(w, n) for w in stack_of(5, 5)]) for n in ("layer", "iter"))
    )
    layers = layers_of(spec, whole)
    assert [float(w.layer.max()) for w in layers if w.layer is not None] == [0, 1]
    assert [w.iter.shape for w in layers] == [(1, 1, 5, 3, 5)] * 2


def test_layers_of_one_array_cannot_change_their_width() -> None:
    spec = RnnSpec(Cell.GRU, 3, 5, layers=2)
    shapes = (2, 1, 3, 3, 5), (2, 1, 5, 3, 5)
    with pytest.raises(ShapeError, match=r"5 channels, got 3"):
        layers_of(spec, RnnWeights(*(np.zeros(s, np.float32) for s in shapes)))
