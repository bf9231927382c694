"""Recordings: inputs and outputs of a model in one ``.npz``.

``in__NAME`` and, where the input is ragged, ``lod__NAME`` (offsets of the last level; upper levels
are ``lod__NAME__0``, ``lod__NAME__1``, outermost first); ``out__NAME`` and ``outlod__NAME``
likewise. NAME is the model's own name of an input or output; digits are an output's position,
unless an output bears that name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from onernn.ir.arrays import Array
from onernn.ir.errors import ModelFormatError, ShapeError, UnsupportedError, did_you_mean
from onernn.ir.files import npz_arrays, replacing
from onernn.ir.graph import Value
from onernn.ir.ragged import Batch, Ragged, as_array

INPUTS, OUTPUTS = ("in__", "lod__"), ("out__", "outlod__")
"""Prefixes of the names of a recording's arrays."""
_LONGEST = 2**16 - 5  # bytes of a name, without .npy


def read_arrays(
    file: str | Path, prefixes: tuple[str, ...] = (*INPUTS, *OUTPUTS)
) -> dict[str, Array]:
    """Returns the arrays of an ``.npz`` with these prefixes; the others are not read. Raises as
    `npz_arrays`.
    """
    return npz_arrays(file, prefixes)


def open_recording(
    recording: str | Path | Mapping[str, Array], prefixes: tuple[str, ...] = (*INPUTS, *OUTPUTS)
) -> tuple[Mapping[str, Array], str]:
    """Returns the arrays of a recording, a file or these themselves, and what messages call it."""
    if isinstance(recording, Mapping):
        return recording, "recording"
    return read_arrays(recording, prefixes), str(recording)


def read_inputs(
    arrays: Mapping[str, Array], inputs: Iterable[Value], file: str = ""
) -> dict[str, Batch]:
    """Returns the batch for each input. Raises `ModelFormatError` listing the names the model
    takes.
    """
    expected = {value.name: value for value in inputs}
    recorded = [key.removeprefix("in__") for key in arrays if key.startswith("in__")]
    unknown = [n for n in recorded if n not in expected]
    wrong = [f"in__{n} is missing" for n in expected if n not in recorded]
    wrong += [f"in__{n} is unknown" for n in unknown]
    if wrong:
        names = "; ".join(map(str, expected.values()))
        hint = did_you_mean(unknown[0], expected) if unknown else ""
        raise ModelFormatError(f"{', '.join(wrong)}; the model takes {names}{hint}", file)
    return {name: _batch(arrays, "in__", "lod__", name, file) for name in expected}


def read_outputs(
    arrays: Mapping[str, Array], outputs: Iterable[Value], file: str = ""
) -> dict[str, Batch]:
    """Returns the recorded outputs by the model's names; those not recorded are left out."""
    names = [value.name for value in outputs]
    result: dict[str, Batch] = {}
    for key in arrays:
        if not key.startswith("out__"):
            continue
        name = key.removeprefix("out__")
        known = name
        if name not in names and re.fullmatch("[0-9]+", name) and int(name) < len(names):
            known = names[int(name)]
        if known not in names:
            listed = ", ".join(names) + did_you_mean(name, names)
            raise ModelFormatError(f"{key} is unknown; the model gives {listed}", file)
        result[known] = _batch(arrays, "out__", "outlod__", name, file)
    if not result:
        raise ModelFormatError(f"no recorded outputs (out__NAME); the model gives {names}", file)
    return result


def read_given(arrays: Mapping[str, Array]) -> dict[str, Batch]:
    """Every recorded input by its own name, whatever a model takes."""
    names = [key.removeprefix("in__") for key in arrays if key.startswith("in__")]
    return {name: _batch(arrays, "in__", "lod__", name, "") for name in names}


def _batch(arrays: Mapping[str, Array], data: str, lod: str, name: str, file: str) -> Batch:
    array = arrays[data + name]
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf":
        result = array.dtype if isinstance(array, np.ndarray) else "no array"
        raise ModelFormatError(f"{data}{name}: expected numbers, got {result}", file)
    if lod + name not in arrays:
        return as_array(array, data + name)
    outer: list[Array] = []
    while (key := f"{lod}{name}__{len(outer)}") in arrays:
        outer.append(arrays[key])
    try:
        return Ragged(array, arrays[lod + name], tuple(outer))
    except ShapeError as error:
        raise ModelFormatError(f"{lod}{name}: {error}", file) from error


def write_outputs(file: str | Path, outputs: Mapping[str, Batch]) -> None:
    """Writes out__ and outlod__ keys; with the inputs' file they are a recording."""
    write_arrays(file, keyed_outputs(outputs))


def write_inputs(file: str | Path, inputs: Mapping[str, Batch]) -> None:
    """Writes in__ and lod__ keys, as `read_given` reads them."""
    write_arrays(file, keyed_inputs(inputs))


def keyed_inputs(inputs: Mapping[str, Batch]) -> dict[str, Array]:
    """Returns the arrays of a recording, by their names in it."""
    return _key_arrays(*INPUTS, inputs)


def keyed_outputs(outputs: Mapping[str, Batch]) -> dict[str, Array]:
    return _key_arrays(*OUTPUTS, outputs)


def _key_arrays(data: str, lod: str, values: Mapping[str, Batch]) -> dict[str, Array]:
    arrays: dict[str, Array] = {}
    for name, value in values.items():
        if isinstance(value, Ragged):
            arrays[f"{lod}{name}"] = value.offsets
            arrays.update((f"{lod}{name}__{k}", o) for k, o in enumerate(value.outer))
            value = value.data
        arrays[f"{data}{name}"] = value
    return arrays


def write_arrays(file: str | Path, arrays: Mapping[str, Array]) -> None:
    """Writes an ``.npz``. Raises `UnsupportedError` for names that a zip cannot hold."""
    for name in arrays:
        try:
            fits = "\0" not in name and len(name.encode()) <= _LONGEST
        except UnicodeEncodeError:
            fits = False
        if not fits:
            raise UnsupportedError(f"{name[:80]!r} cannot be the name of an array in an .npz")
    with replacing(file) as stream:  # savez would add .npz to a name without it
        np.savez(stream, **arrays)  # type: ignore[arg-type]
