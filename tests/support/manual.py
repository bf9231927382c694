"""Code blocks of the manual, run in order: what a page shows is what comes out.

``python`` blocks of a page share one namespace; a ``text`` block right behind one is what it
prints. A ``console`` block holds commands behind ``$ `` and what each prints. A comment in front of
a block says more: ``<!-- file: NAME -->`` (the block is that file), ``<!-- runs in: torch -->``
(where that framework is), ``<!-- not run: REASON -->``.

``python -m support.manual PAGE ...`` runs pages, each in a temporary folder, and exits with 1 if
something else comes out. The folder is empty; if blocks name folders of the checkout, it has links
to these folders. ``--write`` writes into the page what came out. ``--has torch``: only the sections
that have blocks of that framework, and blocks that copy the samples.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import traceback
from difflib import unified_diff
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

REPO = Path(__file__).resolve().parents[2]
LINKED = ("benchmarks", "examples", "tests", "tools")

_BLOCK = re.compile(
    r"(?:^<!-- (?P<key>file|runs in|not run): (?P<value>[^\n]*?) -->\n+)?"
    r"^```(?P<language>[\w+-]*|\{\w[\w:-]*\}[^\n]*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_SECTION = re.compile(r"^##+ ", re.MULTILINE)
_COMMAND = re.compile(r"^\$ ((?:.*\\\n)*.*)\n?", re.MULTILINE)
_SHELL = re.compile(r"[|;&<>$*(){}]|\\\n")


class Block(NamedTuple):
    language: str
    text: str
    key: str
    value: str
    start: int  # of the text, in the page
    end: int
    prints: bool
    """Whether it is what the Python block in front of it prints."""


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page. Raises `ValueError` for a fence that none of them is."""
    found: list[Block] = []
    behind = -1
    for each in _BLOCK.finditer(page):
        follows = behind >= 0 and not page[behind : each.start()].strip()
        prints = follows and each["language"] == "text" and not each["key"]
        span = each.start("text"), each.end("text")
        key, value = each["key"] or "", each["value"] or ""
        found.append(Block(each["language"], each["text"], key, value, *span, prints))
        behind = each.end() if each["language"] == "python" else -1
    fences = len(re.findall(r"^ *(?:```|~~~)", page, re.MULTILINE))
    if fences != 2 * len(found):
        raise ValueError(f"{fences} fences, and {len(found)} blocks that can be told")
    return found


_SPACE = ((re.compile(r"[━─]+"), "-"), (re.compile(r"[ \t]+"), " "), (re.compile(r" *\n"), "\n"))
# What changes from run to run: rounding errors, times and sizes. A page may show another value than
# what comes out, up to this factor: times depend on the machine and on what else runs there.
_MEASURED = re.compile(
    r"\b(?P<number>\d+(?:\.\d+)?(?:e-\d+)?)"
    r"(?P<unit>(?<=e-\d\d)| (?:ms|us|s|MB|kB)\b|(?<=\.\d) times\b|(?<=\.\d\d) times\b)"
)
_FACTORS = {"": 1000.0, " times": 4.0, "MB": 4.0, "s": 50.0}
_UNITS = {" us": (1e-6, "s"), " ms": (1e-3, "s"), " s": (1.0, "s")}
_UNITS |= {" kB": (1e-3, "MB"), " MB": (1.0, "MB")}
_ANY = re.sub(r"P<\w+>", ":", _MEASURED.pattern)


def folders_of(page: str) -> list[str]:
    """Returns the checkout's folders that the blocks of a page need: none for a user's page."""
    run = "".join(block.text for block in blocks(page) if block.key != "not run")
    return [name for name in LINKED if re.search(rf"\b{name}/", run)]


def same(wanted: str, got: str) -> bool:
    """Returns whether a page shows what came out.

    ``...`` is what the page leaves out, such as the name of a CPU's kernel: any lines if it is a
    line, else any part of a line.
    """
    for pattern, name in _SPACE:
        wanted, got = pattern.sub(name, wanted), pattern.sub(name, got)
    shown = [*_MEASURED.finditer(wanted)]
    parts = re.split(r"^ ?\.\.\.\n", f"{wanted.strip()}\n", flags=re.MULTILINE)
    whole = "(?:.*\n)*".join(".*".join(map(_escape, part.split("..."))) for part in parts)
    found = re.fullmatch(whole, f"{got.strip()}\n")
    return found is not None and all(
        _is_near(each[0], value) for each, value in zip(shown, found.groups(), strict=True)
    )


def _escape(text: str) -> str:
    """Returns a pattern of the text, with a group for each measured value."""
    ends, pattern = 0, ""
    for each in _MEASURED.finditer(text):
        pattern += re.escape(text[ends : each.start()]) + f"({_ANY})"
        ends = each.end()
    return pattern + re.escape(text[ends:])


def _is_near(wanted: str, got: str) -> bool:
    """Returns whether two measured values are of one kind, and within its factor."""
    (one, kind), (other, its) = map(_value, (wanted, got))
    return kind == its and max(one, other) <= _FACTORS[kind] * min(one, other)


def _value(text: str) -> tuple[float, str]:
    """Returns a measured value in the unit of its kind, and the kind."""
    found = _MEASURED.fullmatch(text)
    assert found is not None, text
    scale, kind = _UNITS.get(found["unit"], (1.0, found["unit"]))
    return float(found["number"]) * scale, kind


def _command(line: str) -> str:
    """What a command prints. Raises `AssertionError` where it fails."""
    if line.startswith("onernn ") and not _SHELL.search(line):
        from onernn.cli import main

        said, argv = io.StringIO(), sys.argv
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            sys.argv = shlex.split(line)
            try:
                main()
                status: Any = 0
            except SystemExit as stop:
                status = stop.code or 0
            finally:
                sys.argv = argv
        text = said.getvalue()
    else:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-c", line],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PATH": path},
        )
        text, status = done.stdout, done.returncode
    assert status == 0, f"$ {line}\nexit {status}\n{text}"
    return text


def _console(text: str) -> str:
    """The block as it comes out; what the page shows where that is the same."""
    commands = list(_COMMAND.finditer(text))
    ends = [each.start() for each in commands[1:]] + [len(text)]
    out = ""
    for each, end in zip(commands, ends, strict=True):
        wanted, got = text[each.end() : end], _command(each[1])
        shown = not wanted.strip() and not got.strip() or same(wanted, got)
        out += each[0].rstrip("\n") + "\n" + (wanted if shown else got.rstrip() + "\n")
    return out


def _python(block: Block, page: Path, names: dict[str, Any]) -> str:
    said = io.StringIO()
    line = page.read_text().count("\n", 0, block.start)
    with contextlib.redirect_stdout(said):
        exec(compile("\n" * line + block.text, page, "exec"), names)
    return said.getvalue()


def run(page: Path, has: str = "") -> str:
    """The page with what came out. Raises what a block raises, `AssertionError` for a command."""
    text = page.read_text()
    names: dict[str, Any] = {"__name__": "__main__"}
    new = text
    moved = 0
    printed: str | None = None
    found = blocks(text)
    section = {block: len(_SECTION.findall(text, 0, block.start)) for block in found}
    beside = {section[block] for block in found if (block.key, block.value) == ("runs in", has)}
    for block in found:
        out = block.text
        copies = block.language == "console" and block.text.startswith("$ onernn samples ")
        if has and section[block] not in beside and not copies:
            continue
        if block.prints:
            if printed is not None and not same(block.text, printed):
                out = printed.rstrip() + "\n"
            printed = None
        elif block.key == "not run" or block.key == "runs in" and block.value != has:
            printed = None
        elif block.key == "file":
            Path(block.value).parent.mkdir(parents=True, exist_ok=True)
            Path(block.value).write_text(block.text)
        elif block.language == "python":
            printed = _python(block, page, names)
        elif block.language == "console":
            out = _console(block.text)
        elif not block.language.startswith("{"):
            raise ValueError(f"nobody knows what this block is:\n{block.text}")
        new = new[: block.start + moved] + out + new[block.end + moved :]
        moved += len(out) - len(block.text)
    return new


def _shown(page: Path, has: str, write: bool) -> bool:
    """Whether a page shows what comes out; says what does not. A process runs one page."""
    try:
        new = run(page, has)
    except (Exception, SystemExit):
        traceback.print_exc()
        return False
    old = page.read_text()
    if write and new != old:
        page.write_text(new)
    elif new != old:
        print(*unified_diff(old.splitlines(), new.splitlines(), "page", "run", lineterm=""),
              sep="\n")  # fmt: skip
        return False
    return True


def main() -> int:
    ask = argparse.ArgumentParser(description=__doc__)
    ask.add_argument("pages", type=Path, nargs="+")
    ask.add_argument("--has", default="")
    ask.add_argument("--write", action="store_true")
    given = ask.parse_args()
    if len(given.pages) == 1:
        page = given.pages[0].resolve()
        sys.argv = sys.argv[:1]
        with TemporaryDirectory() as folder:
            for name in folders_of(page.read_text()):
                (Path(folder) / name).symlink_to(REPO / name)
            os.chdir(folder)
            return 0 if _shown(page, given.has, given.write) else 1
    options = [f"--has={given.has}"] + ["--write"] * given.write
    failed = [page for page in given.pages if started(page, *options).returncode]
    print(*(f"not as shown: {page}" for page in failed), sep="\n")
    return 1 if failed else 0


def started(page: Path, *options: str, **how: Any) -> subprocess.CompletedProcess[str]:
    """A page in a process of its own, as its reader would be: errors come as users see them."""
    environment = {name: value for name, value in os.environ.items() if name != "ONERNN_RAISE"}
    environment |= {"PYTHONPATH": str(REPO / "tests"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "support.manual", str(page), *options]
    return subprocess.run(command, env=environment | {"OMP_NUM_THREADS": "1"}, text=True, **how)


if __name__ == "__main__":
    sys.exit(main())
