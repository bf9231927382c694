"""Real files damaged at random: a number makes the same file again, on every Python."""

from __future__ import annotations

import random
from pathlib import Path

from fuzz import targets

LARGEST = 20_000  # bytes of a seed: the larger ones say nothing else


def damaged(kind: str, number: int) -> tuple[Path, bytes]:
    """The real file with this number, and what stands in its place."""
    rng = random.Random(f"{kind} {number}")
    files = [file for file in targets.seeds(kind) if file.stat().st_size <= LARGEST]
    seed = rng.choice(files)
    mutation = rng.choice(targets.KINDS[kind].mutations)
    return seed, mutation(rng, seed.read_bytes(), rng.choice(files).read_bytes())
