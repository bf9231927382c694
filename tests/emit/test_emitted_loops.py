"""Loops are written as such."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.checking import assert_close
from support.emitting import STRICT, build, generated
from support.looping import EARLY, GRAPHS, ROW, feeds, graph, loop

from onernn import Session, UnsupportedError

NAMED = {name.replace(" ", "_"): made for name, made in GRAPHS.items()}


def test_generated_code_runs_the_turns_that_numpy_runs(tmp_path: Path) -> None:
    for name, made in build(NAMED, tmp_path).items():
        session = Session(NAMED[name], backend="reference", passes=())
        for feed in feeds():
            want = session.run(feed)
            status, got = made.run(feed, want)
            assert not status, (name, got)
            for each, value in want.items():
                assert_close(got[each], np.asarray(value).reshape(-1).astype(got[each].dtype))


def test_it_compiles_without_warnings(tmp_path: Path) -> None:
    build({name: NAMED[name] for name in ("loops_in_loops", "a_layer_in_it")}, tmp_path, STRICT)


def test_what_is_gathered_in_turns_that_nobody_bounds_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="nobody bounds how many turns"):
        generated("early", graph(loop(EARLY, "n c row row limit", "y z u"), gives="z", row=ROW))
