"""Damages real files where that reaches new code: python -m fuzz.guided paddle --seconds 60.

Needs atheris, which has a wheel for Python 3.11 only. What is found goes to out/fuzz.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["onernn"]):
    import onernn.cli  # noqa: F401 (all that there is)

from fuzz import targets

WHOLE = "run"
"""The harness that does all that the command line does with models of every kind."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=[*targets.KINDS, WHOLE])
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0, help="0: another one each time")
    parser.add_argument("--out", type=Path, default=Path("out/fuzz"))
    parser.add_argument("--go-on", action="store_true", help="do not stop at what is found")
    options = parser.parse_args()
    kinds = [*targets.KINDS] if options.kind == WHOLE else [options.kind]
    path = targets.steps if options.kind == WHOLE else targets.reading
    # The first two bytes of an input say which file the others stand for.
    seeds = [(kind, seed) for kind in kinds for seed in targets.seeds(kind)][: 1 << 16]
    if options.kind == WHOLE:  # each file takes seconds, and libFuzzer begins with all of them
        random.Random(options.seed or None).shuffle(seeds)
        del seeds[2 * options.seconds + 20 :]
    folder = Path(tempfile.mkdtemp())
    place = targets.Place(folder)
    seen: set[tuple[str, ...]] = set()
    options.out.mkdir(parents=True, exist_ok=True)

    def chosen(data: bytes) -> int:
        return int.from_bytes(data[:2], "little") % len(seeds)

    def one(data: bytes) -> None:
        _, seed = seeds[chosen(data)]
        for found in targets.attempt(path(place.model(seed, data[2:]), folder)):
            if isinstance(found, str) or (key := (found.what[:40], found.where[-1])) in seen:
                continue
            seen.add(key)
            digest = hashlib.sha256(data).hexdigest()[:12]
            file = options.out / f"{options.kind}-{digest}-{seed.parent.name}-{seed.name}"
            file.write_bytes(data[2:])
            if not options.go_on:
                raise AssertionError(f"{file}: {found}")
            print(f"FOUND {file}: {found}", flush=True)

    def mutated(data: bytes, most: int, number: int) -> bytes:
        rng = random.Random(number)
        if rng.random() < 0.5:
            return atheris.Mutate(data, most)
        kind, seed = seeds[chosen(data)]
        mutation = rng.choice(targets.KINDS[kind].mutations)
        _, other = rng.choice([each for each in seeds if each[0] == kind])
        return (data[:2] + mutation(rng, data[2:], other.read_bytes()))[:most]

    corpus = folder / "corpus"
    corpus.mkdir()
    for number, (_, seed) in enumerate(seeds):
        (corpus / str(number)).write_bytes(number.to_bytes(2, "little") + seed.read_bytes())
    flags = [f"-max_total_time={options.seconds}", "-max_len=65536", "-handle_alrm=0"]
    # Atheris has a clock of its own; the limit of a step stands in targets.py.
    flags += ["-timeout=600", "-rss_limit_mb=3000", f"-seed={options.seed}"]
    flags += [f"-artifact_prefix={options.out}/{options.kind}-"]
    atheris.Setup([sys.argv[0], *flags, str(corpus)], one, custom_mutator=mutated)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
