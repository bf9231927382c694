"""English lines out of what every Python carries: docstrings and ``pydoc_data.topics``."""

import ast
import hashlib
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics

SKIPPED_FOLDERS = {"site-packages", "dist-packages", "test", "tests", "idle_test"}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)

BLANK_LINE = re.compile(r"\n\s*\n")
# Doctests, directives, tables and rules: no sentences there.
MARKUP = re.compile(r"^\s*(>>>|\.\.\.|\.\. |[|+#$%@=*-]{2,}).*$", re.MULTILINE)
# Read over, as if nobody had written them.
QUIET = "\"'`*,()[]"
SENTENCE_END = ".:;!?"
# The only words of one letter are a and I; any other is somebody's variable.
WORD = re.compile(r"[AaI]|[A-Za-z][a-z]+|[A-Z]{2,}")
SHORTEST, LONGEST = 3, 30  # words in a line


def paragraphs() -> Iterator[str]:
    """Each paragraph of the standard library's documentation; nothing is imported for it."""
    stdlib = Path(sysconfig.get_path("stdlib"))
    documents = [topics[name] for name in sorted(topics)]
    for path in sorted(stdlib.rglob("*.py")):
        if SKIPPED_FOLDERS.isdisjoint(path.relative_to(stdlib).parts):
            nodes = ast.walk(ast.parse(path.read_bytes()))
            docstrings = (ast.get_docstring(node) for node in nodes if isinstance(node, DOCUMENTED))
            documents += [text for text in docstrings if text]
    for document in documents:
        yield from BLANK_LINE.split(MARKUP.sub("\n", document))


def runs(paragraph: str) -> Iterator[list[str]]:
    """Runs of plain words, lower-cased; an identifier, a number or a full stop ends a run."""
    run: list[str] = []
    for token in paragraph.replace("--", " . ").split():
        bare = token.strip(QUIET + SENTENCE_END)
        is_word = WORD.fullmatch(bare) is not None
        if is_word:
            run.append(bare.lower())
        if not is_word or token.rstrip(QUIET).endswith(tuple(SENTENCE_END)):
            yield run
            run = []
    yield run


def lines() -> list[str]:
    """All distinct runs of several words, each a line, in alphabetical order."""
    found = (run for paragraph in paragraphs() for run in runs(paragraph))
    return sorted({" ".join(run) for run in found if SHORTEST <= len(run) <= LONGEST})


def is_held_out(line: str) -> bool:
    """Whether the line is one of the twentieth never trained on: the line alone decides."""
    return hashlib.sha256(line.encode()).digest()[0] < 256 // 20
