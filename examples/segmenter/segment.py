"""Puts the spaces back into English text, with a model that Paddle trained and onernn runs.

python examples/segmenter/segment.py "thequickbrownfoxjumpsoverthelazydog"
python examples/segmenter/segment.py < lines.txt
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from tags import letter_ids, letters_of, words_of

import onernn
from onernn.ir.graph import Node

MODEL = Path(__file__).resolve().parent
TOGETHER = 256  # lines of a batch


class Segmenter:
    """The tagger; ``observe`` sees each operator that runs, with its seconds."""

    def __init__(self, dtype: str = "f32", threads: int | None = None) -> None:
        self.model = onernn.load(MODEL)
        self.session = onernn.Session(self.model, dtype=dtype, threads=threads)
        (self.input,) = self.model.inputs
        self.tags = next(v.name for v in self.model.outputs if v.dtype == "int64")

    def __call__(self, lines: list[str], observe: Any = None) -> list[str]:
        """Each line with spaces between its words; all lines run as one ragged batch."""
        letters = [letters_of(line) for line in lines]
        batch = onernn.Ragged.from_list([letter_ids(each) for each in letters])
        tags = self.session.run({self.input.name: batch}, observe)[self.tags]
        assert isinstance(tags, onernn.Ragged)
        return [" ".join(words_of(*pair)) for pair in zip(letters, tags.to_list(), strict=True)]


def main(
    text: Annotated[str | None, typer.Argument(help="Letters; standard input without it.")] = None,
    show: Annotated[bool, typer.Option(help="Tell what was fused, what ran, how long.")] = False,
) -> None:
    """Puts the spaces back into English text."""
    lines = [text] if text is not None else sys.stdin.read().splitlines()
    spent: dict[str, float] = {}

    def observe(node: Node, outputs: tuple[Any, ...], seconds: float) -> None:
        spent[node.label] = spent.get(node.label, 0.0) + seconds

    started = time.perf_counter()
    segment = Segmenter()
    spent["load, fuse and pack"] = time.perf_counter() - started
    for at in range(0, len(lines), TOGETHER):
        for line in segment(lines[at : at + TOGETHER], observe):
            print(line)
    if show:
        tell(segment, spent)


def tell(segment: Segmenter, spent: dict[str, float]) -> None:
    """What was fused, which kernels ran, and the milliseconds of each part, on stderr."""
    console = Console(stderr=True, soft_wrap=True)
    for fused in onernn.fuse(segment.model).applied:
        ops = " + ".join(op.type for op in fused.origin)
        console.print(f"fused    {fused.name}: {ops}", highlight=False)
    for line in segment.session.explain().splitlines():
        console.print(f"kernel   {line}", highlight=False, markup=False)
    table = Table("part", "ms")
    for part, seconds in spent.items():
        table.add_row(part, f"{seconds * 1e3:.2f}")
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
