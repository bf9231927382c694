"""Made-up clicks: who bought what in which order, and whether the next offer was taken.

A user's interest wanders: most things bought belong to the category of the moment, which changes
now and then. An offer is taken where it belongs to the category at the end. So order counts, and
so does what of the past the offer looks like.
"""

from __future__ import annotations

import numpy as np

CATEGORIES, EACH = 6, 5
ITEMS = 1 + CATEGORIES * EACH
"""0 stands behind the end of a history."""
STEPS = 14
Batch = dict[str, np.ndarray]


def clicks(count: int, seed: int) -> tuple[Batch, np.ndarray]:
    """history (N, T), lengths (N,) and offer (N,), and whether it was taken (N,)."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(3, STEPS + 1, count)
    history = np.zeros((count, STEPS), np.int64)
    moment = rng.integers(0, CATEGORIES, count)
    seen = moment.copy()
    for t in range(STEPS):
        changes = rng.random(count) < 0.2
        moment = np.where(changes, rng.integers(0, CATEGORIES, count), moment)
        bought = np.where(rng.random(count) < 0.85, moment, rng.integers(0, CATEGORIES, count))
        running = t < lengths
        history[:, t] = np.where(running, 1 + bought * EACH + rng.integers(0, EACH, count), 0)
        seen = np.where(running, moment, seen)
    past = (history[np.arange(count), rng.integers(0, lengths)] - 1) // EACH
    offered = np.where(rng.random(count) < 0.5, seen, past)
    taken = (offered == seen) != (rng.random(count) < 0.05)
    offer = 1 + offered * EACH + rng.integers(0, EACH, count)
    return {"history": history, "lengths": lengths, "offer": offer}, taken.astype(np.float32)


def auc(scores: np.ndarray, taken: np.ndarray) -> float:
    """How often an offer that was taken has a higher score than one that was not."""
    order = np.argsort(scores, kind="stable")
    ranks = np.empty(len(scores))
    ranks[order] = np.arange(1, len(scores) + 1)
    good = taken > 0
    places = ranks[good].sum() - good.sum() * (good.sum() + 1) / 2
    return float(places / (good.sum() * (~good).sum()))
