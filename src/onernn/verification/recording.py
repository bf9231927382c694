"""Recordings: inputs and outputs of a model in one ``.npz``.

The keys are ``in__NAME`` for an input and ``lod__NAME`` for the offsets of a ragged input. Offsets
of upper LoD levels are ``lod__NAME__0``, ``lod__NAME__1``, outermost first. Outputs have
``out__NAME`` and ``outlod__NAME``. NAME is the model's name of an input or output; a number is the
position of an output, unless an output has that name.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from pathlib import Path

import numpy as np

from onernn.ir.arrays import Array
from onernn.ir.errors import ModelFormatError, ShapeError, UnsupportedError, did_you_mean
from onernn.ir.files import npz_arrays, replacing
from onernn.ir.graph import Value
from onernn.ir.ragged import Batch, Ragged, as_array
from onernn.verification.comparing import MAP, inputs_by_name

INPUTS, OUTPUTS = ("in__", "lod__"), ("out__", "outlod__")
"""Prefixes of a recording's keys: of the arrays, and of the offsets."""
_LONGEST = 2**16 - 5  # maximum bytes of a name in a zip, less the suffix .npy
Recording = str | Path | Mapping[str, Array]
"""A recording: its file, or its arrays."""


def read_arrays(
    file: str | Path, prefixes: tuple[str, ...] = (*INPUTS, *OUTPUTS)
) -> dict[str, Array]:
    """Returns the arrays of an ``.npz`` whose keys have these prefixes. Raises what `npz_arrays`
    raises.
    """
    return npz_arrays(file, prefixes)


def open_recording(
    recording: Recording, prefixes: tuple[str, ...] = (*INPUTS, *OUTPUTS)
) -> tuple[Mapping[str, Array], str]:
    """Returns the arrays of a recording, and its name for messages."""
    if isinstance(recording, Mapping):
        return recording, "recording"
    return read_arrays(recording, prefixes), str(recording)


def read_inputs(
    arrays: Mapping[str, Array], inputs: Iterable[Value], file: str = ""
) -> dict[str, Batch]:
    """Returns the batch for each of a model's inputs, padded or ragged as the model takes it (see
    `inputs_by_name`).

    Raises `ModelFormatError` for missing and unknown inputs; its message lists the model's inputs.
    """
    expected = tuple(inputs)
    recorded = read_given(arrays, file)
    result, used = inputs_by_name(expected, recorded)
    names = [value.name for value in expected]
    unknown = [n for n in recorded if n not in used and n not in names]
    wrong = [f"in__{n} is missing" for n in names if n not in result and n not in recorded]
    wrong += [f"in__{n} is unknown" for n in unknown]
    if wrong:
        hint = did_you_mean(unknown[0], names) if unknown else ""
        takes = "; ".join(map(str, expected))
        if bare := sorted({*names} & _keys(arrays, file)):
            hint = f"; found {', '.join(bare)} without the prefix in__; use {savez_call(expected)}"
        raise ModelFormatError(f"{', '.join(wrong)}; the model takes {takes}{hint}", file)
    return {name: result[name] if name in result else recorded[name] for name in names}


def _keys(arrays: Mapping[str, Array], file: str) -> set[str]:
    """Returns the keys of a recording, including keys without the prefixes that were read."""
    if not Path(file).is_file():
        return {*arrays}
    with np.load(file) as archive:
        return {*archive}


def savez_call(inputs: Iterable[Value]) -> str:
    """Returns the call of NumPy that writes a recording of these inputs."""
    keys = (p + each.name for each in inputs for p in INPUTS[: 1 + bool(each.lod_depth)])
    return f"numpy.savez('inputs.npz', **{{{', '.join(f'{key!r}: ...' for key in keys)}}})"


def read_outputs(
    arrays: Mapping[str, Array], outputs: Iterable[Value], file: str = ""
) -> dict[str, Batch]:
    """Returns the recorded outputs by the model's names; outputs may be missing.

    Raises `ModelFormatError` for an unknown output, or if no output was recorded.
    """
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
            raise ModelFormatError(f"{key}: expected an output of the model, {listed}", file)
        result[known] = _batch(arrays, OUTPUTS, name, file)
    if not result:
        raise ModelFormatError(f"expected recorded outputs (out__NAME) of {names}, got none", file)
    return result


def read_given(arrays: Mapping[str, Array], file: str = "") -> dict[str, Batch]:
    """Returns all recorded inputs by their recorded names, whether or not a model takes them."""
    return {name: _batch(arrays, INPUTS, name, file) for name in input_names(arrays)}


def rename_recording(
    recording: Recording, names: Mapping[str, str], known: Container[str] = ()
) -> Recording:
    """Returns the recording with the model's names. ``names``: the recorded names by the model's
    names.

    ``known``: names that the recording may lack. Raises `UnsupportedError` if the recording lacks a
    different name.
    """
    if not names:
        return recording
    arrays, _ = open_recording(recording)
    keys = "|".join((*INPUTS, *OUTPUTS))
    parts = {key: re.fullmatch(f"({keys})(.*?)((?:__[0-9]+)?)", key) for key in arrays}
    recorded = {part[2] for part in parts.values() if part}
    check_names({k: v for k, v in names.items() if v not in known}, names, recorded)
    own = {other: name for name, other in names.items()}
    return {
        f"{part[1]}{own.get(part[2], part[2])}{part[3]}" if part else key: arrays[key]
        for key, part in parts.items()
    }


def check_names(names: Mapping[str, str], mine: Iterable[str], theirs: Iterable[str]) -> None:
    """Raises `UnsupportedError` unless each key of ``names`` is in ``mine``, each value is in
    ``theirs``, and all values differ.
    """
    pairs = ((name, other, set(mine), set(theirs)) for name, other in names.items())
    for name, other, known, others in pairs:
        for each, among in ((name, known), (other, others)):
            if each not in among:
                listed = ", ".join(map(repr, sorted(among)))
                hint = did_you_mean(each, among)
                raise UnsupportedError(
                    f"{MAP}: {name}={other}: {each!r} is not one of {listed}{hint}"
                )
    if len({*names.values()}) < len(names):
        raise UnsupportedError(f"{MAP}: expected different names, got {dict(names)}")


def input_names(arrays: Iterable[str]) -> list[str]:
    """Returns the names of the recorded inputs."""
    return [key.removeprefix("in__") for key in arrays if key.startswith("in__")]


def _batch(arrays: Mapping[str, Array], prefixes: tuple[str, str], name: str, file: str) -> Batch:
    data, lod = prefixes
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
    """Writes an ``.npz`` with the outputs of a recording, under the keys out__ and outlod__."""
    write_arrays(file, key_arrays(OUTPUTS, outputs))


def write_inputs(file: str | Path, inputs: Mapping[str, Batch]) -> None:
    """Writes an ``.npz`` with the inputs of a recording, under the keys in__ and lod__."""
    write_arrays(file, key_arrays(INPUTS, inputs))


def key_arrays(prefixes: tuple[str, str], values: Mapping[str, Batch]) -> dict[str, Array]:
    """Returns the arrays of inputs or outputs by their keys in a recording."""
    data, lod = prefixes
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
            expected = f"expected a name without NUL, of at most {_LONGEST:,} bytes"
            raise UnsupportedError(f"{name[:80]!r}: {expected}, for an array in an .npz")
    with replacing(file) as stream:  # savez would add .npz to a name without it
        np.savez(stream, **arrays)  # type: ignore[arg-type]
