"""The roof of a task: the time of its matrix products alone on this machine, without padding.

The roof is the time of the input products at the machine's peak speed, plus the times of the
recurrent products of all steps. A step's product has one row for each sequence that still runs, and
its fastest measurement counts. The roof has no time for gate functions and conversions.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

import numpy as np

from benchmarks.tasks import GATES, Task
from onernn.backend.onednn.library import load_library
from onernn.backend.onednn.memory import (
    Descriptor,
    Memory,
    bind,
    new_attributes,
    new_descriptor,
    new_primitive,
    new_stream,
    reorder,
)

TYPES = {"f32": ("f32", "f32", "f32"), "bf16": ("bf16", "bf16", "f32"), "u8": ("u8", "s8", "f32")}
LARGE = ((1024, 1024, 1024), (1024, 512, 1536), (256, 2048, 2048))
SECONDS = 0.005
"""The duration of one measurement of a product. Each turn measures again, and the fastest call
counts.
"""

Seconds = Callable[[str, int, int, int, int], float]
"""A function from a dtype, a number of threads, M, K and N to the seconds of the matrix product
(M, K) x (K, N).
"""


class Products:
    """The measured times of oneDNN's matmul on this machine, with the source and the packed weights
    in cache. The fastest call of each product counts.
    """

    def __init__(self) -> None:
        self._library = load_library()
        self._stream = new_stream(self._library)
        self._made: dict[tuple[str, int, int, int, int], Callable[[], None]] = {}
        self._best: dict[tuple[str, int, int, int, int], float] = {}

    def best(self, dtype: str, threads: int, m: int, k: int, n: int) -> float:
        """Returns the seconds of a product, and measures them if this was not done yet."""
        found = self._best.get((dtype, threads, m, k, n))
        return self.measured(dtype, threads, m, k, n) if found is None else found

    def measured(self, dtype: str, threads: int, m: int, k: int, n: int) -> float:
        """Measures some further calls of a product, and returns the seconds of the fastest call."""
        key = (dtype, threads, m, k, n)
        with self._library.threads(threads):
            call = self._made.get(key) or self._made.setdefault(key, self._make(dtype, m, k, n))
            call()
            best, end = self._best.get(key, np.inf), time.perf_counter() + SECONDS
            while (start := time.perf_counter()) < end:
                call()
                best = min(best, time.perf_counter() - start)
        self._best[key] = best
        return best

    def release(self) -> None:
        """Releases the memory of all products, and keeps their times."""
        self._made.clear()

    def _make(self, dtype: str, m: int, k: int, n: int) -> Callable[[], None]:
        library, rng = self._library, np.random.default_rng(0)
        lib, (source, weights, result) = library.lib, TYPES[dtype]
        layouts = {
            "src": Descriptor.from_tag(library, (m, k), source, "ab"),
            "weights": Descriptor.from_tag(library, (k, n), weights, "any"),
            "dst": Descriptor.from_tag(library, (m, n), result, "ab"),
        }
        src, any_weights, dst = (layout.handle for layout in layouts.values())
        attributes = new_attributes(library, own_scratchpad=True)
        given = library.engine, src, any_weights, library.ffi.NULL, dst, attributes
        create = lib.dnnl_matmul_primitive_desc_create
        described = new_descriptor(library, lambda: f"matmul in {dtype}", create, *given)
        for name in ("weights", "scratchpad"):
            query = getattr(lib, f"dnnl_query_{name}_md")
            chosen = lib.dnnl_primitive_desc_query_md(described, query, 0)
            layouts[name] = Descriptor.copy(library, chosen)
        memories = {name: Memory.empty(layout) for name, layout in layouts.items()}
        for name, shape in (("src", (m, k)), ("weights", (k, n))):
            plain = Descriptor.from_tag(library, shape, "f32", "ab")
            numbers = Memory(plain, rng.uniform(0, 1, shape).astype(np.float32))
            memories[name] = reorder(numbers, layouts[name])
        primitive = new_primitive(library, described)
        arguments = bind(
            library, {getattr(lib, f"DNNL_ARG_{n.upper()}"): each for n, each in memories.items()}
        )

        def call(keep: object = memories) -> None:
            execute = library.lib.dnnl_primitive_execute
            library.check(execute(primitive, self._stream, len(arguments), arguments), "matmul")

        return call


def peak(dtype: str, threads: int, of: Seconds) -> float:
    """Returns the floating point operations per second of the fastest large product."""
    return max(2 * m * k * n / of(dtype, threads, m, k, n) for m, k, n in LARGE)


def roof(task: Task, of: Seconds) -> float:
    """Returns the roof of a task in seconds; see the module.

    With two threads the fastest division of the work counts: both threads share each product, each
    thread computes a direction, or each thread computes half of the sequences. For each forward
    product, training adds the gradients of the product's input and of its weights. Only the
    gradients of the states must be computed step by step.
    """
    counts = Counter(task.running.tolist())
    gates, width = GATES[task.cell], task.hidden_size

    def recurrent(threads: int, parts: int = 1) -> float:
        """Returns the seconds of all recurrent products of one direction of one layer, for one of
        ``parts`` equal parts of the sequences.
        """
        rows = Counter({-(-batch // parts): 0 for batch in counts})
        for batch, steps in counts.items():
            rows[-(-batch // parts)] += steps
        seconds = _by_rows(task.dtype, threads, width, gates, max(rows), of)
        return sum(steps * seconds(m) for m, steps in rows.items())

    ways = [task.directions * recurrent(task.threads)]
    if task.threads == 2:
        ways.append(task.directions * recurrent(1, parts=2))
        if task.directions == 2:
            ways.append(recurrent(1))
    in_turn = min(ways) * task.layers
    columns = 2 * sum(task.lengths) * gates * width * task.directions
    at_peak = columns * sum(task.input_sizes)
    if task.kind == "training":
        in_turn *= 2
        at_peak = 3 * at_peak + columns * width * task.layers
    return at_peak / peak(task.dtype, task.threads, of) + in_turn


def _by_rows(
    dtype: str, threads: int, width: int, gates: int, most: int, of: Seconds
) -> Callable[[int], float]:
    """Returns a function from the number of rows of a recurrent product to its seconds.

    It interpolates between measurements of 1, 2, 3, 4, 6, 8, 12, ... and ``most`` rows.
    """
    grid = sorted(
        {most} | {m for e in range(most.bit_length()) for m in (1 << e, 3 << e) if m < most}
    )
    measured = [
        min(
            of(dtype, threads, m, width, gates * width), gates * of(dtype, threads, m, width, width)
        )
        for m in grid
    ]
    # Fewer rows cannot be slower, so a faster time of more rows also counts for fewer rows.
    best = np.minimum.accumulate(measured[::-1])[::-1]
    return lambda rows: float(np.interp(rows, grid, best))
