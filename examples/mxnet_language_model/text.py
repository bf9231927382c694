"""The words that the language model learns: Python's own documentation, as this Python has it."""

from __future__ import annotations

import ast
import re
import sysconfig
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from pydoc_data import topics

UNKNOWN, END = "<unknown>", "<end>"
WORD = re.compile(r"[a-z]+|[0-9]+|[^\sa-z0-9]")


def documents() -> Iterator[str]:
    """The topics of help(), then the docstrings of the standard library, in the order of names."""
    yield from (text for _, text in sorted(topics.topics.items()))
    folder = Path(sysconfig.get_paths()["stdlib"])
    for file in sorted(folder.glob("*.py")):
        try:
            tree = ast.parse(file.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                if text := ast.get_docstring(node):
                    yield text


def words_of(text: str) -> list[str]:
    return [*WORD.findall(text.lower()), END]


def vocabulary(words: list[str], size: int) -> list[str]:
    """The most frequent words, those of one count by the alphabet."""
    counted = sorted(Counter(words).items(), key=lambda pair: (-pair[1], pair[0]))
    return [UNKNOWN, *(word for word, _ in counted[: size - 1])]
