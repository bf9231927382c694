"""Writes the notebook and runs it: ``.venvs/docs/bin/python docs/make_notebook.py``."""

from __future__ import annotations

from pathlib import Path

import nbformat
from nbclient import NotebookClient

DOCS = Path(__file__).resolve().parent
FILE = DOCS / "notebook.ipynb"

CELLS = [
    """# A real model: its graph, its speed, its error

The model is `examples/segmenter`: two bidirectional GRU layers and a CRF that PaddlePaddle 2.6.2
trained to put the spaces back into English text. Paddle also recorded what the model gave for
held-out text. Nothing below needs Paddle. The notebook was run as it stands; a test runs it
again.""",
    """import time

import numpy as np

import onernn

model = onernn.load("examples/segmenter")
model""",
    """## What fusion makes of it

Four recurrent operators with the projections in front of them become one.""",
    """fused = onernn.fuse(model)
for each in fused.applied:
    print(each.name, "->", each.where)
fused.model""",
    """## What runs it

A `Session` fuses by itself, packs the weights once and can be run as often as asked.""",
    """session = onernn.Session(model, threads=1)
for each in session.explained:
    print(each.cell, each.direction, each.dtype)""",
    """## Its error

The recording holds the letters and what Paddle gave for them: scores of the tags, and the tags.""",
    """report = onernn.verify(model, "examples/segmenter/heldout.npz")
for each in report.outputs:
    print(each.name, "equal:", each.passed)""",
    """for name, each in report.errors.items():
    print(name, "largest error:", f"{each.max_abs:.1e}" if hasattr(each, "max_abs") else each)""",
    """## Its speed

A ragged batch: sequences of 5 to 60 letters, none padded. The time is the least of several runs on
one thread.""",
    """rng = np.random.default_rng(0)
lines = [rng.integers(0, 26, length) for length in rng.integers(5, 61, 16)]
batch = onernn.Ragged.from_list(lines)
least = 1e9
for _ in range(20):
    start = time.perf_counter()
    session.run({"letters": batch})
    least = min(least, time.perf_counter() - start)
print(f"{len(batch.data)} letters in {least * 1e3:.2f} ms")""",
    """The same in NumPy, which is the reference that everything is compared with:""",
    """reference = onernn.Session(model, backend="reference", threads=1)
start = time.perf_counter()
exact = reference.run({"letters": batch})
print(f"{len(batch.data)} letters in {(time.perf_counter() - start) * 1e3:.2f} ms")
fast = session.run({"letters": batch})
scores, tags = fast
print("scores apart:", f"{abs(fast[scores].data - exact[scores].data).max():.1e}")
print("tags equal:", bool((fast[tags].data == exact[tags].data).all()))""",
]


def main() -> None:
    book = nbformat.v4.new_notebook()
    for place, text in enumerate(CELLS):
        prose = text.startswith(("#", "The same in"))
        cell = (nbformat.v4.new_markdown_cell if prose else nbformat.v4.new_code_cell)(text)
        cell["id"] = f"cell-{place}"
        book.cells.append(cell)
    NotebookClient(book, resources={"metadata": {"path": str(DOCS.parent)}}).execute()
    for cell in book.cells:
        cell.metadata = {}
        for output in cell.get("outputs", ()):  # the output in HTML is enough
            output.get("data", {}).pop("text/plain", None)
    book.metadata = {
        "kernelspec": {"name": "python3", "display_name": "Python 3"},
        "language_info": {"name": "python", "pygments_lexer": "python3"},
    }
    FILE.write_text(nbformat.writes(book) + "\n")


if __name__ == "__main__":
    main()
