"""Branches and loops are written as such."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support import branching, looping
from support.branching import branch, chosen, feeds, graph
from support.emitting import assert_computes, build, generated
from support.graphs import new_node, unfused

from onernn import Session, UnsupportedError


def test_generated_code_takes_the_branches_and_turns_that_numpy_takes(tmp_path: Path) -> None:
    for control in (branching, looping):
        named = {name.replace(" ", "_"): each for name, each in control.GRAPHS.items()}
        for name, made in build(named, tmp_path / control.__name__).items():
            session = Session(named[name], backend="reference", passes=())
            for feed in control.feeds():
                assert_computes(made, feed, session.run(feed))
            assert "if (*in.c) {" in made.files[f"{name}.hpp"] or control is looping


def test_a_branch_that_is_not_generated_ends_the_call(tmp_path: Path) -> None:
    odd = branch(new_node("y = Split a", axis=0))
    both = graph(chosen("c", branch(new_node("y = Neg a")), odd, "x|x", "y"))
    made = build({"partly": both}, tmp_path)["partly"]
    assert "Ends with no_branch where c is false: " in made.files["partly.hpp"]
    for feed in feeds():
        want = unfused(both, feed)
        status, got = made.run(feed, want)
        assert made.lacks(status) is not bool(feed["c"])
        if not status:
            np.testing.assert_array_equal(got["y"], want["y"].reshape(-1))


def test_what_is_gathered_in_turns_that_nobody_bounds_is_refused() -> None:
    early = looping.loop(looping.EARLY, "n c row row limit", "y z u")
    with pytest.raises(UnsupportedError, match=r"\(Loop\)"):
        generated("early", looping.graph(early, gives="z", row=looping.ROW))
