"""Scores made-up clicks with a model of DIEN: ``python examples/dien/score.py paddle``.

Or mxnet, or onnx: no framework is needed. What it prints: which kernels run, and how good the
answers are.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from clicks import auc, clicks

from onernn import Session, load

HERE = Path(__file__).resolve().parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", choices=("paddle", "mxnet", "onnx"), default="onnx")
    name = parser.parse_args().model
    training = json.loads((HERE / name / "training.json").read_text())
    batch, taken = clicks(training["heldout"], 1)
    if name == "mxnet":  # time first, floats, and the names that its export gives
        arrays = batch["history"].T, batch["lengths"], batch["offer"]
        batch = {f"data{k}": array.astype(np.float32) for k, array in enumerate(arrays)}
    session = Session(load(HERE / name / "model.onnx" if name == "onnx" else HERE / name))
    (scores,) = session.run(batch).values()
    print(session.explain())
    area = auc(scores, taken)
    same = (
        "as measured in the framework" if abs(area - training["auc"]) < 1e-4 else f"not {training}"
    )
    print(f"AUC {area:.4f}, {same}")


if __name__ == "__main__":
    main()
