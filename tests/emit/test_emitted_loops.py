"""Loops are written as such."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.emitting import assert_computes, build, generated
from support.looping import EARLY, GRAPHS, ROW, feeds, graph, loop

from onernn import Session, UnsupportedError

NAMED = {name.replace(" ", "_"): made for name, made in GRAPHS.items()}


def test_generated_code_runs_the_turns_that_numpy_runs(tmp_path: Path) -> None:
    for name, made in build(NAMED, tmp_path).items():
        session = Session(NAMED[name], backend="reference", passes=())
        for feed in feeds():
            assert_computes(made, feed, session.run(feed))


def test_what_is_gathered_in_turns_that_nobody_bounds_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="the number of turns has no known bound"):
        generated("early", graph(loop(EARLY, "n c row row limit", "y z u"), gives="z", row=ROW))
