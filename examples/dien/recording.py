"""What a framework answers on clicks that it was not trained on, and how good that is."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from clicks import Batch, auc, clicks

HELD_OUT, RECORDED = 4000, 64


def record(
    folder: Path,
    framework: str,
    given: Callable[[Batch], Sequence[Any]],
    names: Sequence[str],
    model: Callable[..., np.ndarray],
) -> None:
    """Writes heldout.npz and training.json. ``given``: the model's inputs, as it calls them."""
    batch, taken = clicks(HELD_OUT, 1)
    area = auc(model(*given(batch)), taken)
    few = {name: array[:RECORDED] for name, array in batch.items()}
    inputs = [
        np.asarray(each.asnumpy() if hasattr(each, "asnumpy") else each) for each in given(few)
    ]
    arrays = {f"in__{name}": array for name, array in zip(names, inputs, strict=True)}
    np.savez_compressed(
        folder / "heldout.npz", **arrays, out__0=model(*given(few)), taken=taken[:RECORDED]
    )
    facts = {"framework": framework, "heldout": HELD_OUT, "auc": round(area, 4)}
    (folder / "training.json").write_text(json.dumps(facts, indent=2) + "\n")
    print(facts)
