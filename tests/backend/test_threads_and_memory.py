"""Many threads, many shapes, many steps: right numbers, flat memory, no waiting.

The long forms run where ONERNN_SOAK is set: 8 x 1000 runs, 20,000 shapes, 100,000 steps.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
from support.arrays import uniform
from support.checking import assert_all_close, assert_close, assert_same
from support.interpreters import printed
from support.layers import (
    CELLS,
    attention_for,
    prepare_on,
    random_ragged,
    random_state,
    random_weights,
    words,
)

from onernn import Cell, Ragged, RnnSpec
from onernn.backend import open_backend
from onernn.backend.onednn import kernels
from onernn.backend.onednn.kernels import Executable
from onernn.ir.errors import ShapeError
from onernn.ir.spec import Direction

LONG = bool(os.environ.get("ONERNN_SOAK"))
TOLERANCES = {"f32": (1e-5, 1e-6), "bf16": (2e-2, 1e-2), "u8": (0.0, 4e-2)}

SPECS = {
    "gru": RnnSpec(Cell.GRU, 6, 16, direction="bidirectional_concat"),
    "lbr": RnnSpec(Cell.LBR_GRU, 6, 16),
    "lstm": RnnSpec(Cell.LSTM, 6, 16, layers=2),
}


def measured(code: str, **environment: str) -> list[float]:
    """What a new interpreter prints. ``resident()`` is there: MB of memory in use."""
    prelude = """
    from itertools import cycle
    import numpy as np
    from support.interpreters import resident
    from support.layers import random_ragged, random_weights
    from onernn import Cell, Ragged, RnnSpec
    from onernn.backend import open_backend
    """
    words = printed(dedent(prelude) + dedent(code), seconds=None, **environment)
    return [float(word) for word in words]


@pytest.mark.parametrize(
    "cell, dtype, threads",
    [(cell, dtype, 1 + k % 2) for k, (cell, dtype) in enumerate(product(SPECS, TOLERANCES))],
)
@pytest.mark.long
def test_eight_threads_share_a_layer_over_changing_shapes(
    cell: str, dtype: str, threads: int
) -> None:
    spec = SPECS[cell]
    weights = random_weights(spec, 0)
    layer = prepare_on("onednn", spec, weights, threads=threads, cache_capacity=8, dtype=dtype)
    reference = prepare_on("reference", spec, weights, dtype="f64")
    rng, cases = np.random.default_rng(0), []
    for seed in range(24):
        lengths = rng.integers(0, 13, rng.integers(1, 24)).tolist()
        x: Any = random_ragged(lengths, 6, seed)
        x = x.with_data(x.data / 2)
        if seed % 3 == 0:  # few shapes: small batches over buffers that are kept
            x = rng.uniform(-1, 1, (seed % 2 + 1, 3, 6)).astype(np.float32)
        state = random_state(spec, len(lengths) if seed % 3 else 3, seed)
        cases.append((x, state, reference.run(x, state)))
    start = threading.Barrier(8)

    def soak(seed: int) -> None:
        start.wait()
        order = np.random.default_rng(seed).integers(0, len(cases), 1000 if LONG else 15)
        for k in order:
            x, state, want = cases[k]
            assert_all_close(layer.run(x, state), want, *TOLERANCES[dtype])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(soak, range(8)))


def test_a_comparison_among_threads_can_fail() -> None:
    with pytest.raises(AssertionError, match="apart"):
        assert_close(np.zeros(3, np.float32), np.float64([0, 0, 3e-6]))


class TestCaches:
    def test_found_and_made_are_told(self) -> None:
        spec = RnnSpec(Cell.GRU, 3, 4)
        layer = prepare_on("onednn", spec, threads=1)
        made = layer.cache_info()["misses"]
        x = np.zeros((5, 2, 3), np.float32)
        layer.run(x)
        assert layer.cache_info() == {"hits": 0, "misses": made + 1}
        for _ in range(3):
            layer.run(x)
        assert layer.cache_info() == {"hits": 3, "misses": made + 1}

    @pytest.mark.parametrize("capacity", [1, 3])
    def test_a_small_cache_gives_the_same_numbers(self, capacity: int) -> None:
        spec = SPECS["gru"]
        roomy, tight = (
            prepare_on("onednn", spec),
            prepare_on("onednn", spec, threads=1, cache_capacity=capacity),
        )
        for seed in range(12):
            x = random_ragged([9, 5, 5, 2, seed], 6, seed)
            assert_same(tight.run(x)[0], roomy.run(x)[0])

    def test_what_leaves_a_small_cache_is_made_again(self) -> None:
        spec = RnnSpec(Cell.LSTM, 3, 4)
        layer = prepare_on("onednn", spec, threads=1, cache_capacity=2)
        for _ in range(2):
            for steps in (2, 3, 5, 7):
                layer.run(np.zeros((steps, 1, 3), np.float32))
        assert layer.cache_info() == {"hits": 0, "misses": 9}  # one for the kernel's name

    def test_a_capacity_below_one_is_refused(self) -> None:
        with pytest.raises(ValueError, match="cache_capacity: .* 0"):
            open_backend("onednn", cache_capacity=0)

    @pytest.mark.parametrize("dtype", ["f32", "bf16"])
    @pytest.mark.parametrize("budget", [0, 1 << 20])
    def test_weights_packed_for_every_shape_stay_within_a_budget(
        self, dtype: str, budget: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Kernels of LBR cells ask for another layout for nearly every T and N."""
        monkeypatch.setattr(kernels, "PACKED_BYTES", budget)
        spec = RnnSpec(Cell.LBR_GRU, 96, 200)
        weights = random_weights(spec, 0)
        layer = prepare_on("onednn", spec, weights, threads=1, dtype=dtype)
        reference = prepare_on("reference", spec, weights, dtype="f64")
        (row,) = layer._stack_kernel._kernels(1)
        packed = getattr(row[0], "_direction", None) and row[0]._direction.packed
        rtol, atol = TOLERANCES[dtype]
        for batch in range(1, 20):
            x = uniform(3, batch, 96, seed=batch)
            assert_close(layer.run(x)[0], reference.run(x)[0], rtol, atol)
        if packed is None:
            pytest.skip("this CPU has no bf16: the reference packs nothing")
        held = [[memory.descriptor.nbytes for memory in all_] for all_ in packed._packed.values()]
        plain = [memory.descriptor.nbytes for memory in packed._plain.values()]
        # Beside the first layout of each: the budget, and what is plain already.
        assert sum(sum(sizes[1:]) for sizes in held) <= budget + sum(plain)


@pytest.mark.long
class TestMemory:
    def test_it_is_flat_over_thousands_of_shapes(self) -> None:
        """A primitive takes 0.35 MB; oneDNN keeps 1024 itself, so that many come first.

        The same 2500 again and again: larger ones would need larger buffers.
        """
        count = 20_000 if LONG else 300
        code = f"""
        spec = RnnSpec(Cell.LSTM, 4, 4)
        backend = open_backend("onednn", threads=1, cache_capacity=64)
        layer = backend.prepare(spec, random_weights(spec, 0))
        shapes = cycle([(t, n) for t in range(1, 51) for n in range(1, 51)])
        def run(count):
            for _ in range(count):
                layer.run(np.zeros((*next(shapes), 4), np.float32))
            return resident()
        print(-run(1_100) + run({count}))
        """
        (growth,) = measured(code)
        assert growth < 40, f"{growth} MB in {count} shapes, {0.35 * count} MB without bounds"

    def test_it_is_flat_over_ragged_batches(self) -> None:
        count = 20_000 if LONG else 400
        code = f"""
        spec = RnnSpec(Cell.LBR_GRU, 64, 128)
        layer = open_backend("onednn", threads=1).prepare(spec, random_weights(spec, 0))
        rng = np.random.default_rng(0)
        def run(count):
            for _ in range(count):
                lengths = rng.integers(0, 20, rng.integers(1, 24))
                layer.run(Ragged.from_lengths(np.zeros((lengths.sum(), 64), np.float32), lengths))
            return resident()
        print(-run(400) + run({count}))
        """
        (growth,) = measured(code)
        assert growth < 20

    def test_it_is_flat_over_a_long_stream(self) -> None:
        count = 100_000 if LONG else 4_000
        code = f"""
        import gc, tracemalloc
        for dtype in ("f32", "bf16", "u8"):
            spec = RnnSpec(Cell.LSTM, 8, 16)
            backend = open_backend("onednn", threads=1)
            layer = backend.prepare(spec, random_weights(spec, 0), dtype=dtype)
            x, state = np.ones((1, 1, 8), np.float32) / 2, None
            def stream(count, state):
                for _ in range(count):
                    _, state = layer.run(x, state)
                return state
            state = stream(1_000, state)
            taken = [resident()]
            for _ in range(8):
                state = stream({count // 8}, state)
                taken.append(resident())
            print(np.median(np.diff(taken)))
            tracemalloc.start()
            state = stream({count // 8}, state)
            gc.collect()
            print(tracemalloc.get_traced_memory()[0] / 2**20)
            tracemalloc.stop()
        """
        # MB in an eighth of the steps: 100 bytes of each. The allocator's heap grows in steps of
        # its own, at a moment that chance names, so most eighths have to add nothing.
        for grown in measured(code):
            assert grown < 100 * count / 8 / 2**20


STREAMED = [(cell, more) for cell, more in CELLS if not cell.has_attention]


class TestStreaming:
    """Step after step equals one long run: bit for bit on the reference."""

    @pytest.mark.parametrize("dtype", ["f32", "bf16", "u8", "reference"])
    @pytest.mark.parametrize("cell, more", STREAMED)
    def test_steps_equal_a_run(self, cell: Cell, more: dict[str, Any], dtype: str) -> None:
        spec = RnnSpec(cell, 5, 8, layers=2, **more)
        if dtype == "reference":
            layer = prepare_on("reference", spec)
        else:
            layer = prepare_on("onednn", spec, threads=1, dtype=dtype)
        x = uniform(12, 3, 5)
        state = random_state(spec, 3, 1)
        y, final = layer.run(x, state)
        outputs = []
        for step in x:
            step_y, state = layer.run(step[None], state)
            outputs.append(step_y)
        got, want = (np.concatenate(outputs), *state), (y, *final)
        if dtype == "reference":
            assert_same(got, want)
        else:
            assert_all_close(got, want, *TOLERANCES[dtype])

    @pytest.mark.parametrize("direction", ["left2right", "bidirectional_concat"])
    def test_a_sentence_alone_runs_as_among_others(self, direction: Direction) -> None:
        """It takes the way of dense batches, also the third time; LoD and messages stay its own."""
        spec = RnnSpec(Cell.LSTM, 5, 8, direction=direction)
        layer = prepare_on("onednn", spec, threads=1)
        data = uniform(7, 5)
        h, c = random_state(spec, 1, 1)
        both = Ragged.from_lengths(np.concatenate([data, data[:2]]), [7, 2])
        want, ends = layer.run(both, (np.repeat(h, 2, axis=2), np.repeat(c, 2, axis=2)))
        lone = Ragged(data, np.array([0, 7]), (np.array([0, 1]),))
        for _ in range(3):
            y, final = layer.run(lone, (h, c))
            assert isinstance(y, Ragged) and y.lod == lone.lod
            assert_close(y.data, want.data[:7], *TOLERANCES["f32"])
            for got, end in zip(final, ends, strict=True):
                assert_close(got, end[:, :, :1], *TOLERANCES["f32"])
        empty = Ragged.from_lengths(data[:0], [0])
        y, final = layer.run(empty, (h, c))
        assert y.data.shape == (0, spec.output_size)
        assert_same(final[0], h)
        with pytest.raises(ShapeError, match=r"x: expected \(W, 5\), got \(7, 4\)"):
            layer.run(lone.with_data(data[:, :4]), (h, c))

    @pytest.mark.parametrize("backend", ["onednn", "reference"])
    def test_attention_is_streamed_along(self, backend: str) -> None:
        spec = RnnSpec(Cell.AUGRU, 5, 8)
        layer = prepare_on(backend, spec)
        x = random_ragged([12], 5, 0)
        attention = attention_for(spec, x, 1)
        assert attention is not None
        y, final = layer.run(x, None, attention)
        state, outputs = None, []
        for step, scale in zip(x.data, attention.data, strict=True):
            step_y, state = layer.run(step[None, None], state, scale[None, None])
            outputs.append(step_y[0])
        assert state is not None
        assert_close(np.concatenate(outputs), words(y))
        assert_close(state[0], final[0])


def test_other_threads_run_while_a_kernel_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing takes the interpreter from this thread here: only who gives it up lets others run."""
    spec = RnnSpec(Cell.LSTM, 64, 256)
    layer = prepare_on("onednn", spec, threads=1)
    x = np.zeros((200, 16, 64), np.float32)
    layer.run(x)
    counted, stop, started = [0], threading.Event(), threading.Event()

    def count() -> None:
        while not stop.is_set():
            counted[0] += 1
            started.set()
            time.sleep(1e-4)  # gives the interpreter back

    seen: list[int] = []
    execute = Executable.execute

    def counting(self: Executable, *arguments: Any) -> None:
        before = counted[0]
        execute(self, *arguments)
        seen.append(counted[0] - before)

    monkeypatch.setattr(Executable, "execute", counting)
    interval = sys.getswitchinterval()
    other = threading.Thread(target=count)
    try:
        other.start()
        started.wait()
        sys.setswitchinterval(1000)  # seconds
        held = 1
        for _ in range(10):  # a thread that waited already asks once more by the old interval
            before = counted[0]
            sum(range(10**6))
            held = counted[0] - before
            if not held:
                break
        while not any(seen) and len(seen) < 1000:  # until the system lets the other one run
            layer.run(x)
    finally:
        sys.setswitchinterval(interval)
        stop.set()
        other.join()
    assert held == 0, "the interpreter was taken away: this test shows nothing"
    assert any(seen)


class TestFork:
    """A child can use a layer that its parent has used, with one thread; more raise an error."""

    @pytest.mark.parametrize("dtype", ["f32", "bf16", "u8"])
    def test_a_layer_runs_on_in_a_child(self, dtype: str) -> None:
        code = f"""
        import os, signal
        spec = RnnSpec(Cell.GRU, 64, 600)
        weights = random_weights(spec, 0)
        x = random_ragged([15] * 4, 64, 0)
        backends = [open_backend("onednn", threads=n) for n in (2, 1)]
        two, one = (each.prepare(spec, weights, dtype="{dtype}") for each in backends)
        two.run(x)
        want = one.run(x)[0].data
        child = os.fork()
        if child:
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        else:
            signal.alarm(300)  # what waits for threads that are not there waits forever
            same = np.array_equal(one.run(x)[0].data, want)
            new = open_backend("onednn", threads=1).prepare(spec, weights, dtype="{dtype}")
            same &= np.array_equal(new.run(x)[0].data, want)
            os._exit(0 if same else 1)
        """
        assert measured(code) == [0]

    def test_several_threads_raise_what_to_do(self) -> None:
        code = """
        import os
        from onernn import LibraryError
        spec = RnnSpec(Cell.GRU, 64, 600)
        two = open_backend("onednn", threads=2).prepare(spec, random_weights(spec, 0))
        x = random_ragged([5] * 4, 64, 0)
        two.run(x)
        child = os.fork()
        if child:
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        else:
            try: two.run(x)
            except LibraryError as error: os._exit(0 if "use threads=1" in str(error) else 2)
            os._exit(1)
        """
        assert measured(code) == [0]
