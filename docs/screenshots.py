"""Takes screenshots of the pages that `verify` and `inspect` write: ``python docs/screenshots.py``.

It needs chromium.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
from onnx import numpy_helper

DOCS = Path(__file__).resolve().parent
DATA = DOCS.parent / "tests" / "data"
PICTURES = DOCS / "pictures"
WIDE = 1200
MOST = 200_000
"""Maximum number of bytes of a picture, so that the manual's pages load fast."""


def write_swapped(folder: Path) -> None:
    """Writes good.onnx, and a copy converted.onnx in which the first two gates of the GRU are
    swapped.
    """
    model = onnx.load(DATA / "onnx" / "torch_gru_dynamic" / "model.onnx")
    onnx.save(model, folder / "good.onnx")
    (gru,) = (node for node in model.graph.node if node.op_type == "GRU")
    for tensor in model.graph.initializer:
        if tensor.name in gru.input[1:4]:  # W, R and B: blocks of the gates z, r, h
            array = numpy_helper.to_array(tensor)
            blocks = np.split(array, 6 if tensor.name == gru.input[3] else 3, axis=1)
            order = (1, 0, 2, 4, 3, 5)[: len(blocks)]
            swapped = np.concatenate([blocks[k] for k in order], axis=1)
            tensor.CopyFrom(numpy_helper.from_array(swapped, tensor.name))
    onnx.save(model, folder / "converted.onnx")


def run(folder: Path, *words: str, code: int) -> None:
    """Runs an onernn command. Raises `SystemExit` if its exit code is not ``code``."""
    done = subprocess.run([sys.executable, "-m", "onernn", *words], cwd=folder, check=False)
    if done.returncode != code:
        raise SystemExit(f"onernn {' '.join(words)}: expected exit {code}, got {done.returncode}")


def photograph(page: Path, picture: Path, high: int) -> None:
    """Writes a screenshot of the top ``high`` pixel rows of a page."""
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    flags += [f"--user-data-dir={page.parent / 'profile'}", f"--window-size={WIDE},{high}"]
    flags += ["--force-device-scale-factor=1", f"--screenshot={picture}"]
    subprocess.run(["chromium", *flags, page.as_uri()], check=True, capture_output=True)
    if (size := picture.stat().st_size) > MOST:
        raise SystemExit(f"{picture}: expected at most {MOST} bytes, got {size}")


def main() -> None:
    """Takes the screenshots: a report on a model with a fault, and a page of a fused model."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        write_swapped(folder)
        verify = ("verify", "converted.onnx", "--against", "good.onnx", "--report", "report.html")
        run(folder, *verify, code=1)
        photograph(folder / "report.html", PICTURES / "verify_report.png", 1312)
        shutil.copy(DATA / "onnx" / "torch_tagger" / "model.onnx", folder / "tagger.onnx")
        run(folder, "inspect", "tagger.onnx", "--html", "page.html", code=0)
        photograph(folder / "page.html", PICTURES / "inspect_page.png", 944)


if __name__ == "__main__":
    main()
