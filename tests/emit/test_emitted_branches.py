"""Branches are written as such: if, else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from support.branching import GRAPHS, branch, chosen, feeds, graph
from support.checking import assert_close
from support.emitting import STRICT, build

from onernn import Session
from onernn.ir.graph import Node


def test_generated_code_takes_the_branch_that_numpy_takes(tmp_path: Path) -> None:
    named = {name.replace(" ", "_"): each for name, each in GRAPHS.items()}
    for name, made in build(named, tmp_path).items():
        session = Session(named[name], backend="reference", passes=())
        for feed in feeds():
            want = session.run(feed)
            status, got = made.run(feed, want)
            assert not status, (name, got)
            for each, value in want.items():
                assert_close(got[each], value.reshape(-1).astype(got[each].dtype))
        assert "if (*in.c) {" in made.files[f"{name}.hpp"]


def test_it_compiles_without_warnings(tmp_path: Path) -> None:
    build({"layers": GRAPHS["layers"], "other_sizes": GRAPHS["other sizes"]}, tmp_path, STRICT)


def test_a_branch_that_is_not_generated_ends_the_call(tmp_path: Path) -> None:
    odd = branch(Node("Split", ("a",), ("y",), {"axis": 0}))
    both = graph(chosen("c", branch(Node("Neg", ("a",), ("y",))), odd, "x|x", "y"))
    made = build({"partly": both}, tmp_path)["partly"]
    assert "Ends with no_branch where c is false: " in made.files["partly.hpp"]
    session = Session(both, backend="reference", passes=())
    for feed in feeds():
        want = session.run(feed)
        status, got = made.run(feed, want)
        assert made.lacks(status) is not bool(feed["c"])
        if not status:
            np.testing.assert_array_equal(got["y"], want["y"].reshape(-1))
