"""Sessions that several threads share."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from onernn import Session
from onernn.engine.session import Feed
from support.fusing import departure


def check_shared(session: Session, given: list[Feed], turns: int) -> None:
    """Three threads run random ones of the feeds; each gives what a walk of one thread gave."""
    want = [session._walked(feed, None) for feed in given]
    wrong: list[Any] = []

    def work(seed: int) -> None:
        for at in np.random.default_rng(seed).integers(len(given), size=turns):
            got = session.run(given[at])
            wrong.extend(n for n in got if departure(got[n], want[at][n], 1e-5))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
