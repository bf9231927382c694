"""Public names and signatures change on purpose only: they are compared with a snapshot."""

from __future__ import annotations

import inspect
from difflib import unified_diff

from support.public_api import SNAPSHOT, lines

import onernn
from onernn.adapters.registry import WRITERS
from onernn.scoring import Scorer


def test_the_public_names_are_those_of_the_snapshot() -> None:
    changes = unified_diff(SNAPSHOT.read_text().splitlines(), lines(), n=0, lineterm="")
    told = [line for line in changes if line[0] in "+-" and line[:3] not in ("+++", "---")]
    listed = "\n".join(told)
    assert not told, (
        f"the public interface changed:\n{listed}\nIf that is meant: run `make api`, commit"
        " tests/project/public_api.txt, and say it in CHANGELOG.md, under Unreleased. What goes"
        " away or means something else has been deprecated before (CONTRIBUTING.md, Versions)."
    )


def test_the_snapshot_has_what_users_type_first() -> None:
    found = "\n".join(lines())
    for part in (
        "onernn.load(path: StrPath, params: StrPath | None = None,",
        "onernn.Session.run(self, inputs: Feed",
        "onernn.Cell.GRU = 'gru'",
        "onernn.RnnSpec.__init__(self, cell: Cell, input_size: int, hidden_size: int, *, layers:",
        "class onernn.ShapeError(OnernnError, ValueError)",
        "onernn.adapters.torch.optimize(",
        "$ onernn verify --against",
        "$ onernn run --input (required)",
    ):
        assert part in found, part


def test_help_shows_the_options_of_sessions_and_of_functions_that_make_one() -> None:
    for function in (onernn.Session, onernn.verify, Scorer):
        options = inspect.signature(function).parameters
        assert {"model", "dtype", "threads", "backend", "max_bytes"} <= options.keys()
        assert not {"options", "session", "args"} & options.keys()
        assert options["max_bytes"].annotation == "int | None"
        assert options["backend"].default == "auto"


def test_help_shows_the_options_of_written_files() -> None:
    options = inspect.signature(onernn.convert).parameters
    for writer in WRITERS.values():
        assert writer.options.items() <= {n: each.default for n, each in options.items()}.items()


def test_records_show_the_types_of_their_fields() -> None:
    shown = str(inspect.signature(onernn.Value)).replace("'", "")
    assert "lod_depth: int = 0" in shown and "= <factory>" in shown


def test_every_public_name_exists_and_is_listed_once() -> None:
    assert sorted(set(onernn.__all__)) == sorted(onernn.__all__)
    assert [name for name in onernn.__all__ if not hasattr(onernn, name)] == []
    assert set(dir(onernn)) == set(onernn.__all__)
