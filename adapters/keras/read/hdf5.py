"""Arrays and texts of an HDF5 file, by h5py in a process of its own.

The HDF5 library goes around in circles, or crashes, for some damaged files: there it costs seconds
and a message. Links to other files, and datasets that lie in other files or are put together from
others, are refused: a model could read any file of its user with them.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import ZipFile

import numpy as np

from onernn.adapters.requirements import require
from onernn.core.arrays import Array
from onernn.core.budget import loading
from onernn.core.errors import ModelFormatError
from onernn.core.npz import read_member

_DEEPEST = 64
_MOST = 10**5  # objects of a file
_SECONDS = 5  # of the CPU, and one more for each 20 MB
_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_TEXTS = ("model_config", "keras_version", "layer_names", "weight_names")


class Held(NamedTuple):
    """``arrays`` by their paths; ``texts``: of attributes, by "path@name"."""

    arrays: dict[str, Array]
    texts: dict[str, list[str]]

    def listed(self, path: str, name: str) -> list[str]:
        """An attribute that is a list; a long one is cut into name0, name1, ...."""
        found = [*self.texts.get(f"{path}@{name}", ())]
        number = 0
        while f"{path}@{name}{number}" in self.texts:
            found += self.texts[f"{path}@{name}{number}"]
            number += 1
        return found


def read(path: str | Path, file: Path) -> Held:
    """What is in an HDF5 file; ``file``: the model that it is of. Raises `ModelFormatError`."""
    with open(path, "rb") as stream:
        if stream.read(len(_SIGNATURE)) != _SIGNATURE:
            raise ModelFormatError("not an HDF5 file", file)
    if find_spec("h5py") is None:
        require("h5py", "keras")
    budget = loading()
    seconds = _SECONDS + os.path.getsize(path) // 20_000_000
    with tempfile.TemporaryDirectory() as folder:
        numbers = [str(budget.most - budget.used), str(seconds)]
        call = f"import sys; from {__name__} import main; main(*sys.argv[1:])"
        command = [sys.executable, "-P", "-c", call, str(Path(path).resolve()), folder, *numbers]
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        environ |= {"OPENBLAS_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            command, env=environ, capture_output=True, text=True, errors="replace"
        )
        told = Path(folder, "told.json")
        if not told.exists():
            raise ModelFormatError(f"the HDF5 library does not read it: {_end(done)}", file)
        found: dict[str, Any] = json.loads(told.read_text("utf-8"))
        if "error" in found:
            raise ModelFormatError(found["error"], file)
        with ZipFile(Path(folder, "arrays.npz")) as archive:
            members = {each.filename: each for each in archive.infolist()}
            arrays = {
                name: read_member(archive, members[f"{at}.npy"], budget)
                for at, name in enumerate(found["names"])
            }
    return Held(arrays, found["texts"])


def _end(done: subprocess.CompletedProcess[str]) -> str:
    """How the process ended that told nothing."""
    if done.returncode == -signal.SIGXCPU:
        return "it goes around in circles"
    if done.returncode < 0:
        return f"it crashed ({signal.Signals(-done.returncode).name})"
    return (done.stderr.strip().splitlines() or ["no word of it"])[-1][:200]


def main(path: str, folder: str, most: str, seconds: str) -> None:
    """The process: writes the arrays of a file, or what is wrong with it, to a folder."""
    import resource

    resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds) + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        held = _everything(path, int(most))
        told: dict[str, Any] = {"names": [*held.arrays], "texts": held.texts}
        arrays: Any = {str(at): array for at, array in enumerate(held.arrays.values())}
        np.savez(Path(folder, "arrays.npz"), **arrays)
    except ModelFormatError as error:
        told = {"error": str(error)}
    except Exception as error:  # whatever h5py makes of bytes that are no file
        told = {"error": f"not a readable HDF5 file: {str(error)[:200]}"}
    Path(folder, "told.json").write_text(json.dumps(told), "utf-8")


def _everything(path: str, most: int) -> Held:
    import h5py

    held, seen = Held({}, {}), 0
    with h5py.File(path, "r") as root:
        waiting = [(root, "", 0)]
        while waiting:
            group, here, depth = waiting.pop()
            if depth > _DEEPEST:
                raise ModelFormatError(f"{here}: groups inside groups, too deep")
            for name in group.attrs:
                if name.rstrip("0123456789") in _TEXTS:
                    held.texts[f"{here.rstrip('/')}@{name}"] = _listed(group.attrs[name])
            for name in group:
                where, seen = f"{here}{name}", seen + 1
                if seen > _MOST:
                    raise ModelFormatError(f"more than {_MOST} groups and arrays")
                if not isinstance(group.get(name, getlink=True), h5py.HardLink):
                    raise ModelFormatError(f"{where}: a link to somewhere else")
                one = group[name]
                if isinstance(one, h5py.Group):
                    waiting.append((one, f"{where}/", depth + 1))
                elif isinstance(one, h5py.Dataset):
                    array = _array(one, where, most)
                    most -= array.nbytes
                    held.arrays[where] = array
    return held


def _array(dataset: Any, where: str, most: int) -> Array:
    if dataset.external or dataset.is_virtual:
        raise ModelFormatError(f"{where}: its numbers lie in other files")
    shape, dtype = dataset.shape, dataset.dtype
    if shape is None or dtype.kind not in "biuf":
        raise ModelFormatError(f"{where}: expected an array of numbers, got {dtype} {shape}")
    size = math.prod(max(size, 1) for size in shape) * dtype.itemsize
    if size > most:
        raise ModelFormatError(f"{where} would take {size:,} bytes, {most:,} are left")
    return np.asarray(dataset[()], dtype.newbyteorder("="))


def _listed(found: Any) -> list[str]:
    """The texts of an attribute."""
    listed = np.ravel(np.asarray(found, object)).tolist()
    return [e.decode("utf-8", "replace") if isinstance(e, bytes) else str(e) for e in listed]
