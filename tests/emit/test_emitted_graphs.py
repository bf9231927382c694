"""Generated C++ of random graphs computes what NumPy computes, over dense and ragged batches.

ONERNN_EMITTED_GRAPHS tells how many graphs; `make fuzz-emitted` takes 2000, and shows why some have
no C++.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.compiling import CHECKED, PLAIN
from support.emitting import Emitted, compile_all, generated
from support.fusing import departure
from support.random_models import Trial, random_trial

from onernn import OnernnError, Ragged, Session
from onernn.engine.emit.pipeline import resolve_inputs
from onernn.ir.ragged import data_of

GRAPHS = int(os.environ.get("ONERNN_EMITTED_GRAPHS", "9"))
IN_ONE_PROGRAM = min(10, GRAPHS // 3)
FLAGS = [CHECKED, ("-O1",), CHECKED, ("-O1", "-march=native")] if GRAPHS > 9 else [PLAIN]
"""Of programs in turn."""
EPS = float(np.finfo(np.float32).eps)


def generate(name: str, trial: Trial, **options: Any) -> Emitted | OnernnError:
    """The model for open sizes, or else for those of the first feed; or why there is none.

    One that lacks a branch is the last choice.
    """
    partial: Emitted | None = None
    inputs, feed = trial.graph.inputs, trial.feeds[0]
    fixed = {each.name: replace(each, shape=data_of(feed[each.name]).shape) for each in inputs}
    for declared in (resolve_inputs(inputs, feed, sizes_open=True), fixed):
        try:
            made = generated(name, trial.graph, declared=declared, **options)
        except OnernnError as error:
            refused = error
        else:
            if made.takes(feed) and not made.program.refused:
                return made
            partial = partial or (made if made.takes(feed) else None)
    return partial or refused


def moved(value: Any, rng: np.random.Generator) -> Any:
    """Every number by one rounding."""
    if isinstance(value, Ragged):
        return value.with_data(moved(value.data, rng))
    if value.dtype.kind != "f":
        return value
    return (value * (1 + rng.choice([-EPS, EPS], value.shape))).astype(value.dtype)


def apart(trial: Trial, made: Emitted) -> Iterator[str]:
    """What generated code gives else than NumPy; feeds that its header excludes are passed over.

    Models that can go word by word do so, too.
    """
    plain = Session(trial.graph, backend="reference", passes=())
    for feed in filter(made.takes, trial.feeds):
        want = plain.run(feed)
        for mode in ["infer", "step"][: 1 + made.steps]:
            status, got = made.run(feed, want, mode)
            if made.lacks(status):
                continue
            found = [f"status {status} {got}"] if status else departures(trial, feed, want, got)
            yield from (f"{made.name}, {mode}: {why}" for why in found)


def departures(trial: Trial, feed: Any, want: Any, got: Any) -> list[str]:
    """Sums in another order, and exp and tanh of ours: 1e-5.

    Where a graph makes more of roundings, four times of what one rounding of all its numbers
    changes is allowed.
    """
    flat = {name: data_of(value).reshape(-1) for name, value in want.items()}
    got = {name: array.astype(flat[name].dtype) for name, array in got.items()}
    if not any(departure(got[name], flat[name], 1e-5) for name in want):
        return []
    rng = np.random.default_rng(0)
    constants = {name: moved(array, rng) for name, array in trial.graph.constants.items()}
    nearby = Session(replace(trial.graph, constants=constants), backend="reference", passes=())
    other = nearby.run({name: moved(value, rng) for name, value in feed.items()})
    near = {name: data_of(value).reshape(-1) for name, value in other.items()}
    reasons = {name: departure(got[name], flat[name], 1e-5, near[name]) for name in want}
    return [f"{name}: {why}" for name, why in reasons.items() if why]


@pytest.mark.long
def test_random_graphs_give_in_generated_code_what_numpy_gives(tmp_path: Path) -> None:
    refused: Counter[str] = Counter()

    def check(first: int) -> tuple[list[int], list[str]]:
        """How many feeds of each model the header tells, and what departs."""
        at = first // IN_ONE_PROGRAM
        options = {"threads": (1, 2, 8)[at % 3], "embed": at % 2 == 0}
        seeds = range(first, min(first + IN_ONE_PROGRAM, GRAPHS))
        trials = {f"m{seed}": random_trial(seed) for seed in seeds}
        found = [generate(name, trial, **options) for name, trial in trials.items()]
        made = [each for each in found if isinstance(each, Emitted)]
        for each in found:
            if isinstance(each, OnernnError):
                refused.update({general(one.reason) for one in each.refusals})
        compile_all(made, tmp_path / str(at), FLAGS[at % len(FLAGS)])
        wrong = [why for each in made for why in apart(trials[each.name], each)]
        for why in wrong:
            print(why, flush=True)  # long before the last graph
        return [sum(map(each.takes, trials[each.name].feeds)) for each in made], wrong

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        done = list(pool.map(check, range(0, GRAPHS, IN_ONE_PROGRAM)))
    wrong = [each for _, found in done for each in found]
    feeds = [count for counts, _ in done for count in counts]
    made = len(feeds)
    print(f"\n{made} of {GRAPHS} graphs are generated, and run {sum(feeds)} batches.")
    print("Why others are not:")
    for reason, count in refused.most_common():
        print(f"{count:6} {reason}")
    assert not wrong
    assert made > 0.5 * GRAPHS


def general(reason: str) -> str:
    """A reason without the names and numbers of one graph."""
    return re.sub(r"'[^']*'|\b[a-zA-Z]\w*_\w+|-?\d+", "..", reason)
