"""What programs that record models have in common; it imports no framework."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from onernn.adapters.paddle import messages

Models = dict[str, Callable[[], Any]]


def registry() -> tuple[Models, Callable[[Callable[[], Any]], Any]]:
    """Models by name, and the decorator that puts a function among them."""
    models: Models = {}
    return models, lambda make: models.setdefault(make.__name__, make)


def record_onnx(names: Iterable[str], export: Callable[[str, Path], None]) -> None:
    """Exports models anew under tests/data/onnx."""
    for name in names:
        folder = Path(__file__).parents[1] / "data" / "onnx" / name
        shutil.rmtree(folder, ignore_errors=True)
        export(name, folder)


def record_frames(
    name: str,
    model: bytes,
    run: Callable[..., Mapping[str, Any]],
    frames: Mapping[str, np.ndarray],
    states: Mapping[str, np.ndarray],
) -> None:
    """Writes a step's file, and what its framework computes frame after frame, to tests/data/steps.

    ``run`` computes the outputs of one frame by name; the next state of ``h`` is ``hN``.
    """
    folder = Path(__file__).parents[1] / "data" / "steps" / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.onnx").write_bytes(model)
    arrays = {f"in__{name}": each for name, each in frames.items()}
    arrays |= {f"first__{name}": each for name, each in states.items()}
    made = list[dict[str, np.ndarray]]()
    for t in range(len(next(iter(frames.values())))):
        outputs = run(**{name: each[t] for name, each in frames.items()}, **states)
        made.append({name: np.asarray(each) for name, each in outputs.items()})
        states = {name: made[-1][f"{name}N"] for name in states}
    arrays |= {f"out__{name}": np.stack([each[name] for each in made]) for name in made[0]}
    np.savez(folder / "frames.npz", **arrays)


def record_each(names: Iterable[str], record: Callable[[str, Path], None]) -> None:
    """Records models in folders of their names, in the folder that the command line names."""
    for name in names:
        record(name, Path(sys.argv[1]) / name)
        print(name)


def strip_call_stacks(file: Path) -> None:
    """They are most of the file, and paths of the machine that built the operators."""
    program = messages.parse("ProgramDesc", file.read_bytes(), file)
    for block in program.blocks:
        for op in block.ops:
            kept = [each for each in op.attrs if each.name != "op_callstack"]
            del op.attrs[:]
            op.attrs.extend(kept)
    file.write_bytes(program.SerializeToString(deterministic=True))
