"""Damages real files at random and runs what reads them: python -m fuzz.mutate --seconds 60.

No coverage guides it, so it runs on every Python; a number makes the same file again.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from fuzz import targets

MEMORY = 1 << 30  # bytes beside what the process has
LARGEST = 20_000  # bytes of a seed: the larger ones say nothing else
AT_ONCE = 200  # files for a process


def damaged(kind: str, number: int) -> tuple[Path, bytes]:
    """The real file with this number, and what stands in its place."""
    rng = random.Random(f"{kind} {number}")
    files = [file for file in targets.seeds(kind) if file.stat().st_size <= LARGEST]
    seed = rng.choice(files)
    mutation = rng.choice(targets.KINDS[kind].mutations)
    return seed, mutation(rng, seed.read_bytes(), rng.choice(files).read_bytes())


def stretch(kind: str, start: int, until: float, tell: int) -> None:
    """Tries numbers one after the other; lines of JSON go to ``tell``."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    with tempfile.TemporaryDirectory() as name:
        place = targets.Place(Path(name))
        for number in range(start, start + AT_ONCE):
            if time.time() > until:
                return
            os.write(tell, (json.dumps(number) + "\n").encode())
            seed, data = damaged(kind, number)
            for found in targets.attempt(targets.steps(place.model(seed, data), Path(name))):
                os.write(tell, (json.dumps(found) + "\n").encode())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", default=",".join(targets.KINDS))
    parser.add_argument("--seconds", type=float, default=60, help="for each kind")
    parser.add_argument("--start", type=int, default=0, help="the first number")
    parser.add_argument("--keep", type=Path, help="a folder for files that found something")
    options = parser.parse_args()
    bad = 0
    for kind in options.kinds.split(","):
        tried: Counter[str] = Counter()
        findings: Counter[tuple[str, ...]] = Counter()
        until, at = time.time() + options.seconds, options.start
        while time.time() < until:
            reading, tell = os.pipe()
            if not (child := os.fork()):
                stretch(kind, at, until, tell)
                os._exit(0)
            os.close(tell)
            with os.fdopen(reading) as lines:
                for found in map(json.loads, lines):
                    if isinstance(found, int):
                        at = found + 1
                        tried["files"] += 1
                    elif isinstance(found, str):
                        tried[found] += 1
                    else:
                        step, what, where = found
                        key = (what[:40], where[-1])
                        findings[key] += 1
                        if findings[key] == 1:
                            print(
                                f"{kind} {at - 1}: {step}: {what} ({'; '.join(where)})", flush=True
                            )
                            _keep(options.keep, kind, at - 1)
            _, status = os.waitpid(child, 0)
            if status:
                findings["died", str(status)] += 1
                print(f"{kind} {at - 1}: the process died, status {status}", flush=True)
                _keep(options.keep, kind, at - 1)
        print(
            f"{kind}: {dict(tried)}",
            *(f"{n} x {key}" for key, n in findings.items()),
            sep="\n  ",
            flush=True,
        )
        bad += len(findings)
    return 1 if bad else 0


def _keep(folder: Path | None, kind: str, number: int) -> None:
    if folder is not None:
        seed, data = damaged(kind, number)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{kind}-{number}-{seed.parent.name}-{seed.name}").write_bytes(data)


if __name__ == "__main__":
    sys.exit(main())
