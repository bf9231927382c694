"""Limits the number of Python tokens and of hard sentences in each package.

`python tools/ratchets.py` counts both in each package, and fails if a count is above its limit in
`ratchets.json`. `--lower` sets each limit to its count. `--move COUNT FROM TO` moves COUNT tokens
from the limit of the package FROM to the limit of TO, for code that moves. `--raise COUNT PACKAGE
NOTE` raises the limit of tokens for a new feature that the design note NOTE describes, and stores
the note in the file. There is no option that raises the limits of hard sentences.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import sys
import tokenize
from collections import Counter
from pathlib import Path
from typing import Any

from words import REPO, all_sentences, find_kinds

LIMITS = REPO / "tools" / "ratchets.json"
COUNTED = ("src", "adapters", "fuse_passes", "reorders", "tests")
LAYOUT = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
)
Counts = dict[str, dict[str, int]]
RAISED = "raised"
"""The key under which the file lists the raised limits, as [tokens, package, design note]."""


def name_package(file: str) -> str:
    """Returns the package of a file: a folder at the top, or one in src/onernn."""
    parts = Path(file).parts
    if parts[0] == "src":
        return "/".join(parts[:3]) if len(parts) > 3 else "src"
    return parts[0] if len(parts) > 1 else "documents"


def count_tokens(text: str) -> int:
    """Returns the number of tokens of a module without comments, docstrings and layout."""
    docstrings = {
        node.lineno
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node.value.value, str)
    }
    return sum(
        token.type not in LAYOUT
        and not (token.type == tokenize.STRING and token.start[0] in docstrings)
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
    )


def count_all() -> Counts:
    """Returns the numbers of Python tokens and of hits of `words`, each by package."""
    tokens, hits = Counter[str](), Counter[str]()
    for folder in COUNTED:
        for path in (REPO / folder).rglob("*.py"):
            if not any(parent.is_symlink() for parent in path.parents):
                package = name_package(str(path.relative_to(REPO)))
                tokens[package] += count_tokens(path.read_text(encoding="utf-8"))
    for sentence in all_sentences():
        hits[name_package(sentence.file)] += len(find_kinds(sentence.text))
    return {"tokens": dict(sorted(tokens.items())), "words": dict(sorted(hits.items()))}


def list_risen(counts: Counts, limits: Counts) -> list[str]:
    """Returns a line for each count that is above its limit. The limit of a new package is 0."""
    return [
        f"{package}: {what}: expected at most {limits[what].get(package, 0)}, got {count}"
        for what in counts
        for package, count in counts[what].items()
        if count > limits[what].get(package, 0)
    ]


def main() -> None:
    """Runs the command line; exits with 1 if a count is above its limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lower", action="store_true", help="set each limit to its count")
    parser.add_argument("--move", nargs=3, metavar=("COUNT", "FROM", "TO"), help="move a limit")
    parser.add_argument("--raise", nargs=3, metavar=("COUNT", "PACKAGE", "NOTE"), dest="raised")
    asked = parser.parse_args()
    limits: dict[str, Any] = json.loads(LIMITS.read_text())
    if asked.raised:
        count, (package, note) = int(asked.raised[0]), asked.raised[1:]
        if count < 1 or not (REPO / "design" / note).is_file():
            parser.error(f"expected COUNT above 0 and NOTE in design/, got {asked.raised}")
        limits["tokens"][package] = limits["tokens"].get(package, 0) + count
        limits.setdefault(RAISED, []).append([count, package, note])
    if asked.move:
        count, source, target = int(asked.move[0]), *asked.move[1:]
        tokens = limits["tokens"]
        if not 0 < count <= tokens.get(source, 0):
            parser.error(f"COUNT: expected 1 to {tokens.get(source, 0)}, got {count}")
        tokens[source] -= count
        tokens[target] = tokens.get(target, 0) + count
    counts = count_all()
    risen = list_risen(counts, limits)
    if asked.lower and not risen:
        limits |= counts
    if limits != json.loads(LIMITS.read_text()):
        LIMITS.write_text(json.dumps(limits, indent=1) + "\n")
    for what, packages in counts.items():
        print(f"{what}: {sum(packages.values())} of {sum(limits[what].values())}")
    if risen:
        sys.exit("\n".join(risen))


if __name__ == "__main__":
    main()
