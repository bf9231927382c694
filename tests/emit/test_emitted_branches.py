"""Branches are written as such: if, else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from support.branching import GRAPHS, branch, chosen, feeds, graph
from support.emitting import assert_computes, build
from support.graphs import new_node

from onernn import Session


def test_generated_code_takes_the_branch_that_numpy_takes(tmp_path: Path) -> None:
    named = {name.replace(" ", "_"): each for name, each in GRAPHS.items()}
    for name, made in build(named, tmp_path).items():
        session = Session(named[name], backend="reference", passes=())
        for feed in feeds():
            assert_computes(made, feed, session.run(feed))
        assert "if (*in.c) {" in made.files[f"{name}.hpp"]


def test_a_branch_that_is_not_generated_ends_the_call(tmp_path: Path) -> None:
    odd = branch(new_node("Split", "a", "y", axis=0))
    both = graph(chosen("c", branch(new_node("Neg", "a", "y")), odd, "x|x", "y"))
    made = build({"partly": both}, tmp_path)["partly"]
    assert "Ends with no_branch where c is false: " in made.files["partly.hpp"]
    session = Session(both, backend="reference", passes=())
    for feed in feeds():
        want = session.run(feed)
        status, got = made.run(feed, want)
        assert made.lacks(status) is not bool(feed["c"])
        if not status:
            np.testing.assert_array_equal(got["y"], want["y"].reshape(-1))
