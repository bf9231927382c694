"""Gradients: the reference's against slopes of the oracle, all others against the reference's."""

from __future__ import annotations

import dataclasses
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.arrays import uniform
from support.checking import assert_all_close, assert_close, assert_same, sentences_of
from support.gradients import (
    AUGRUS,
    Problem,
    assert_gradients,
    assert_slopes,
    by_name,
    map_weights,
    new_problem,
    problems,
    ragged_problem,
    reference_gradients,
)
from support.interpreters import printed, run_python
from support.layers import CELLS, DIRECTIONS, prepare_on, random_ragged, random_state, words
from support.machine import needs_bf16
from support.oracle import run_oracle

from onernn import Cell, Ragged, RnnSpec, RnnWeights, ShapeError, UnsupportedError
from onernn.backend import Gradients, TapeError, reference_stack
from onernn.backend.onednn.library import load_library
from onernn.backend.onednn.training import onednn_trainer

BACKENDS = ["reference", "onednn"]
# What oneDNN's own primitives train.
F32 = [(cell, more) for cell, more in CELLS if cell not in AUGRUS]
BF16 = [(cell, more) for cell, more in F32 if "projection_size" not in more]

CLIPPED = [
    RnnSpec(Cell.LSTM, 3, 4, layers=2, direction="bidirectional_concat", cell_clip=(-0.1, 0.2)),
    RnnSpec(
        Cell.LSTM, 3, 4, peephole=True, projection_size=2, cell_clip=(-0.1, 0.1), cell_clip_nan=True
    ),
    RnnSpec(Cell.LSTM, 3, 4, input_forget=True, cell_clip=(0.05, 0.3)),
]
"""Cell states of which some are clipped and some are not."""


def away_from_the_bend(problem: Problem) -> Problem:
    """A relu's slope jumps at 0, where a rounding can land on the other side. Without signs, the
    terms of a gradient do not cancel: each is rounded to bf16, relative to its own size.
    """
    if problem.spec.cell is not Cell.RNN_RELU:
        return problem
    side = np.where(np.arange(problem.spec.hidden_size) % 2, 20, -20).astype(np.float32)
    weights = [
        map_weights(w, lambda a: np.broadcast_to(side, a.shape) if a.ndim == 4 else abs(a) / 20)
        for w in problem.weights
    ]
    dy = (
        problem.dy.with_data(abs(words(problem.dy)))
        if isinstance(problem.dy, Ragged)
        else abs(problem.dy)
    )
    return problem._replace(weights=weights, dy=dy, dstate=tuple(map(abs, problem.dstate)))


class TestReference:
    """In float64, where a central difference is exact to about eight digits."""

    @staticmethod
    def total(outputs: list[np.ndarray], final: Any, problem: Problem) -> float:
        loss = sum(float((s * d).sum()) for s, d in zip(final, problem.dstate, strict=True))
        for y, dy in zip(outputs, sentences_of(problem.dy), strict=True):
            loss += float((y * dy).sum())
        return loss

    def oracles_loss(self, at: Problem) -> float:
        scale = None if at.attention is None else sentences_of(at.attention)
        found = run_oracle(at.spec, at.weights, sentences_of(at.x), at.state, scale)
        return self.total(*found, at)

    def references_loss(self, at: Problem) -> float:
        y, final = reference_stack(at.spec, at.weights, "f64").run(at.x, at.state, at.attention)
        return self.total(sentences_of(y), final, at)

    @pytest.mark.parametrize("direction", DIRECTIONS)
    @pytest.mark.parametrize("cell, more", CELLS)
    def test_gradients_are_slopes_of_the_oracle(self, cell: Cell, more: dict, direction: Any):
        spec = RnnSpec(cell, 3, 4, layers=2, direction=direction, **more)
        problem = ragged_problem(spec, [3, 0, 2], 1).float64()
        assert_slopes(self.oracles_loss, problem, reference_gradients(problem), 1)

    @pytest.mark.parametrize(
        "spec",
        [
            RnnSpec(Cell.LSTM, 3, 4, input_forget=True, peephole=True),
            RnnSpec(Cell.LSTM, 3, 4, activations=("tanh", "identity", "sigmoid")),
            *CLIPPED,
            RnnSpec(Cell.GRU, 3, 4, activations=("tanh", "sigmoid"), update="replace"),
            RnnSpec(Cell.LBR_AUGRU, 3, 4, direction="bidirectional_sum", update="replace"),
            RnnSpec(Cell.GRU, 4, 4, layers=3, stacking="onednn", direction="bidirectional_concat"),
        ],
    )
    def test_gradients_are_slopes_of_the_references_own_run(self, spec: RnnSpec) -> None:
        problem = ragged_problem(spec, [3, 0, 2], 2).float64()
        assert_slopes(self.references_loss, problem, reference_gradients(problem), 2)

    def test_a_projected_input_and_a_missing_bias_have_no_gradients_of_weights(self) -> None:
        problem = ragged_problem(RnnSpec(Cell.LSTM, 16, 4), [3, 1], 3, projected=True)
        problem = problem._replace(weights=[RnnWeights(None, problem.weights[0].iter)])
        exact = reference_gradients(problem)
        assert exact.keys() == {"x", "state 0", "state 1", "layer 0 iter"}
        assert_slopes(self.oracles_loss, problem.float64(), exact, 3)
        assert_gradients(problem.train(problem.on("onednn"))[1], exact, 1e-5)

    def test_a_wrong_gradient_is_seen(self) -> None:
        problem = ragged_problem(RnnSpec(Cell.GRU, 3, 4), [3, 2], 1).float64()
        right = reference_gradients(problem)
        for name, array in right.items():
            wrong = array.copy()
            wrong.flat[0] += 1e-4
            with pytest.raises(AssertionError, match=name):
                assert_slopes(self.oracles_loss, problem, right | {name: wrong}, 1)
            with pytest.raises(AssertionError, match=name):
                assert_gradients(right | {name: wrong}, right, 1e-6)

    @pytest.mark.parametrize(
        "spec, why",
        [
            (
                RnnSpec(Cell.GRU, 3, 4, activations=("hardsigmoid", "tanh")),
                "no GRU with function hardsigmoid",
            ),
            (RnnSpec(Cell.GRU, 3, 4, gate_clip=1.0), "no GRU with clipped gates"),
        ],
    )
    @pytest.mark.usefixtures("built")
    def test_what_has_no_backward_is_refused(self, spec: RnnSpec, why: str) -> None:
        problem = ragged_problem(spec, [2], 0)
        for backend in (*BACKENDS, "kernels"):
            layer = prepare_on(backend, spec, problem.weights)
            with pytest.raises(UnsupportedError, match=why):
                layer.run_training(problem.x)


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize(
    "backend, dtype, cells",
    [
        ("onednn", "f32", F32),
        pytest.param("onednn", "bf16", BF16, marks=needs_bf16),
        ("kernels", "f32", CELLS),
        ("kernels", "bf16", CELLS),
    ],
)
@given(data=st.data(), threads=st.integers(1, 2))
@settings(max_examples=40)
def test_gradients_are_right_to_their_precision(
    backend: str, dtype: str, cells: Any, data: st.DataObject, threads: int
) -> None:
    problem = data.draw(problems(cells))
    # Sums of up to 200 products, each to 6e-8, through at most 40 contractive steps.
    rtol = 1e-5
    if dtype == "bf16":  # each layer rounds what the one below gave, once more
        problem, rtol = away_from_the_bend(problem), 1.2e-2 * (1 + problem.spec.layers)
    tape = problem.check(problem.on(backend, dtype, threads=threads), rtol)
    assert tape.kernel.lower().startswith(backend) and not tape.why
    assert ("backward" in tape.kernel) == (backend == "onednn")


@pytest.mark.parametrize("cell", [Cell.LSTM, Cell.GRU, Cell.LBR_GRU, Cell.RNN_TANH])
def test_bf16_gradients_are_right_on_every_instruction_set(isa: str, cell: Cell) -> None:
    """Of more rows, units and inputs than a tile holds."""
    problem = ragged_problem(RnnSpec(cell, 33, 70), [4] * 17 + [2] * 3, 1)
    tape = problem.check(problem.on("kernels", "bf16"), 2.4e-2)
    assert tape.kernel.startswith("kernels")


class TestOneDnn:
    @pytest.mark.parametrize("dtype", ["f32", pytest.param("bf16", marks=needs_bf16)])
    @pytest.mark.parametrize("cell", AUGRUS)
    def test_augru_gradients_are_right_on_the_reference(self, cell: Cell, dtype: str) -> None:
        """oneDNN's are wrong unless the attention is 0."""
        spec = RnnSpec(cell, 5, 6, direction="bidirectional_concat")
        problem = ragged_problem(spec, [4, 0, 7], 1)
        tape = problem.check(problem.on("onednn", dtype, strict=False))
        assert tape.kernel == "NumPy reference" and "wrong gradients" in tape.why
        strict = problem.on("onednn", dtype)
        strict.run(problem.x, attention=problem.attention)
        with pytest.raises(UnsupportedError, match="wrong gradients.*drop strict=True"):
            strict.run_training(problem.x, attention=problem.attention)

    @needs_bf16
    def test_bf16_projection_trains_on_the_reference(self) -> None:
        problem = ragged_problem(RnnSpec(Cell.LSTM, 5, 6, projection_size=3), [4, 2], 1)
        tape = problem.check(problem.on("onednn", "bf16", strict=False))
        assert tape.kernel == "NumPy reference" and "no bf16 backward" in tape.why
        with pytest.raises(UnsupportedError, match="no bf16 backward"):
            problem.on("onednn", "bf16").run_training(problem.x)

    @pytest.mark.parametrize("strict", [True, False])
    @pytest.mark.parametrize("dtype", ["u8", "f16"])
    def test_u8_and_f16_are_refused(self, dtype: str, strict: bool) -> None:
        problem = ragged_problem(RnnSpec(Cell.LSTM, 5, 6), [4, 2], 1)
        library = load_library()
        with pytest.raises(UnsupportedError, match=f"not in {dtype}; prepare .* in f32 or bf16"):
            onednn_trainer(library, problem.spec, problem.weights, dtype, 1, strict)

    @pytest.mark.parametrize("direction", DIRECTIONS)
    def test_onednns_stacking_goes_backward_direction_by_direction(self, direction: Any) -> None:
        spec = RnnSpec(Cell.GRU, 6, 6, layers=3, stacking="onednn", direction=direction)
        problem = ragged_problem(spec, [4, 0, 9], 1)
        problem.check(problem.on("onednn"))

    @pytest.mark.parametrize("units", [16, 512])  # 512: OpenMP inside, where there are no shares
    @pytest.mark.parametrize("sentences", [3, 19])
    @pytest.mark.parametrize("dense", [True, False])
    def test_shares_of_a_batch_add_up(self, dense: bool, sentences: int, units: int) -> None:
        spec = RnnSpec(Cell.LBR_GRU, 8, units)
        problem = ragged_problem(spec, [k % 4 for k in range(sentences)], 1)
        if dense:
            x = uniform(3, sentences, 8, bound=2)
            problem = new_problem(spec, problem.weights, x, problem.state, None, 1)
        problem.check(problem.on("onednn", threads=2))

    @pytest.mark.parametrize("threads", [1, 2])
    @pytest.mark.parametrize("cell", [Cell.LSTM, Cell.LBR_GRU])
    def test_gradients_of_a_batch_are_the_sums_of_its_sentences(
        self, cell: Cell, threads: int
    ) -> None:
        """Each piece of a batch adds to what the pieces before it left."""
        spec = RnnSpec(cell, 7, 9, direction="bidirectional_concat")
        problem = ragged_problem(spec, [23, 1, 14, 14, 0, 6], 1)
        layer = problem.on("onednn", threads=threads)
        _, together = problem.train(layer)
        apart = {name: np.zeros_like(a) for name, a in together.items() if "layer" in name}
        for n, words_of_one in enumerate(problem.x.to_list()):
            one = problem._replace(
                x=Ragged.from_list([words_of_one]),
                state=tuple(s[:, :, n : n + 1] for s in problem.state),
                dy=Ragged.from_list([problem.dy.to_list()[n]]),
                dstate=tuple(s[:, :, n : n + 1] for s in problem.dstate),
            )
            for name, array in one.train(layer)[1].items():
                if name in apart:
                    apart[name] += array
        assert_gradients({name: together[name] for name in apart}, apart, 1e-5)


@pytest.mark.usefixtures("built")
class TestKernels:
    @pytest.mark.parametrize("cell", [Cell.GRU, Cell.LBR_AUGRU, Cell.LSTM])
    def test_a_batch_of_several_blocks_of_rows_and_words(self, cell: Cell) -> None:
        """More than the 240 rows and the 512 words that products take at once."""
        spec = RnnSpec(cell, 20, 24)
        problem = ragged_problem(spec, [4] * 150 + [1] * 110, 1)
        # Gradients by weights are sums over 710 words.
        problem.check(problem.on("kernels"))

    @pytest.mark.parametrize("spec", CLIPPED)
    def test_a_clipped_cell_state_has_slope_1_inside_and_0_outside(self, spec: RnnSpec) -> None:
        problem = ragged_problem(replace(spec, hidden_size=20), [3, 0, 2], 2)
        exact = reference_gradients(problem)
        assert not problem.check(problem.on("kernels")).why
        free = replace(problem.spec, cell_clip=None, cell_clip_nan=False)
        unclipped = reference_gradients(problem._replace(spec=free))
        assert max(np.abs(exact[name] - a).max() for name, a in unclipped.items()) > 1e-2

    def test_float64_weights_train_in_float64_on_the_reference(self) -> None:
        problem = ragged_problem(RnnSpec(Cell.LSTM, 3, 4), [3, 1], 0).float64()
        tape = problem.check(problem.on("kernels"), 1e-12)
        assert tape.kernel == "NumPy reference" and "float32" in tape.why


@pytest.mark.parametrize("backend", [*BACKENDS, "kernels"])
class TestEveryBackend:
    @pytest.fixture
    def problem(self) -> Problem:
        spec = RnnSpec(Cell.LSTM, 5, 6, layers=2, direction="bidirectional_concat")
        return ragged_problem(spec, [4, 0, 9, 2], 1)

    @pytest.fixture
    def layer(self, backend: str, problem: Problem, request: pytest.FixtureRequest) -> Any:
        if backend == "kernels":
            request.getfixturevalue("built")
        return prepare_on(backend, problem.spec, problem.weights, threads=1)

    def test_a_training_run_gives_what_a_run_gives(self, layer: Any, problem: Problem) -> None:
        y, state = layer.run(problem.x, problem.state)
        again, ends, _ = layer.run_training(problem.x, problem.state)
        assert_same(again.offsets, y.offsets)
        assert_close(words(again), words(y))
        assert_all_close(ends, state)

    def test_gradients_are_float32_and_shaped_like_what_they_belong_to(
        self, layer: Any, problem: Problem
    ) -> None:
        *_, tape = layer.run_training(problem.x, problem.state)
        gradients = layer.backward(tape, problem.dy, problem.dstate)
        assert gradients.x.lod == problem.x.lod and gradients.attention is None
        for weights, found in zip(problem.weights, gradients.layers, strict=True):
            for name in ("layer", "iter", "bias"):
                assert getattr(found, name).shape == getattr(weights, name).shape
        assert {a.dtype for a in by_name(gradients).values()} == {np.dtype(np.float32)}

    def test_gradients_that_are_not_given_are_zero(self, layer: Any, problem: Problem) -> None:
        zeros = problem._replace(
            dy=problem.x.with_data(np.zeros_like(problem.dy.data)),
            dstate=tuple(np.zeros_like(s) for s in problem.dstate),
        )
        for given_, left_out in (("dy", "dstate"), ("dstate", "dy")):
            want = zeros._replace(**{given_: getattr(problem, given_)}).train(layer)[1]
            assert_same(problem._replace(**{left_out: None}).train(layer)[1], want)

    @pytest.mark.parametrize(
        "batch",
        [
            np.zeros((0, 3, 5), np.float32),
            np.zeros((4, 0, 5), np.float32),
            Ragged(np.zeros((0, 5), np.float32), [0]),
            Ragged(np.zeros((0, 5), np.float32), [0, 0, 0, 0]),
        ],
        ids=["T=0", "N=0", "no sentences", "empty sentences"],
    )
    def test_without_words_a_gradient_of_the_state_passes_through(
        self, layer: Any, problem: Problem, batch: Any
    ) -> None:
        sentences = len(batch) if isinstance(batch, Ragged) else batch.shape[1]
        state = random_state(problem.spec, sentences, 1)
        y, ends, tape = layer.run_training(batch, state)
        gradients = layer.backward(tape, y, random_state(problem.spec, sentences, 2))
        assert words(gradients.x).shape == words(batch).shape
        assert_same(ends, state)
        assert_same(gradients.state, random_state(problem.spec, sentences, 2))
        for name, array in by_name(gradients).items():
            assert "layer" not in name or not array.any()

    def test_of_several_threads_one_gets_the_tape(self, layer: Any, problem: Problem) -> None:
        y, _, tape = layer.run_training(problem.x)

        def outcome(_: int) -> str:
            try:
                layer.backward(tape, y)
            except TapeError:
                return "refused"
            return "done"

        with ThreadPoolExecutor(8) as pool:
            assert sorted(pool.map(outcome, range(8))) == ["done"] + ["refused"] * 7

    def test_a_tape_of_another_layer_is_refused(
        self, backend: str, layer: Any, problem: Problem
    ) -> None:
        other = prepare_on(backend, problem.spec, problem.weights, threads=1)
        y, _, tape = layer.run_training(problem.x)
        with pytest.raises(TapeError, match="tape"):
            other.backward(tape, y)
        layer.backward(tape, y)  # it was not spent
        with pytest.raises(TapeError, match="NoneType"):
            layer.backward(None, y)

    @pytest.mark.parametrize(
        "change, message",
        [
            ({"dy": np.zeros((15, 12), "f4")}, r"dy: expected Ragged\(15, 12\), like y, got \(15"),
            (
                {"dy": random_ragged([4, 0, 9, 2], 6, 0)},
                r"expected Ragged\(15, 12\), .* got Ragged\(",
            ),
            ({"dy": random_ragged([4, 1, 8, 2], 12, 0)}, "dy: expected the offsets of y"),
            ({"dy": Ragged(np.zeros((15, 12), int), [0, 4, 4, 13, 15])}, "dy: .*, got int64"),
            ({"dstate": ()}, r"dstate: expected \(h, c\), got 0 arrays"),
            ({"dstate": (np.zeros((2, 2, 3, 6), "f4"),) * 2}, r"dstate h: expected \(L, D, N, O\)"),
        ],
    )
    def test_wrong_gradients_are_refused_by_name_and_spend_nothing(
        self, layer: Any, problem: Problem, change: dict, message: str
    ) -> None:
        *_, tape = layer.run_training(problem.x)
        given_ = {"dy": problem.dy} | change
        with pytest.raises(ShapeError, match=message):
            layer.backward(tape, **given_)
        layer.backward(tape, problem.dy)

    def test_the_callers_arrays_may_change_after_the_run(
        self, layer: Any, problem: Problem
    ) -> None:
        for dense in (False, True):
            if dense:
                x = np.ascontiguousarray(problem.x.data[:12].reshape(4, 3, 5))
                state = tuple(s[:, :, :3].copy() for s in problem.state)
                problem = new_problem(problem.spec, problem.weights, x, state, None, 4)
            want = problem.train(layer)[1]
            x = words(problem.x).copy()
            given_ = problem.x.with_data(x) if isinstance(problem.x, Ragged) else x
            state = tuple(s.copy() for s in problem.state)
            y, ends, tape = layer.run_training(given_, state)
            for array in (x, *state, words(y), *ends):
                array[...] = np.nan
            first = layer.backward(tape, problem.dy, problem.dstate)
            *_, tape = layer.run_training(problem.x, problem.state)
            layer.backward(tape, problem.dy, problem.dstate)  # leaves the first ones alone
            assert_same(by_name(first), want)

    def test_threads_share_a_layer(self, layer: Any, problem: Problem) -> None:
        parts = [
            ragged_problem(problem.spec, lengths, 1)._replace(weights=problem.weights)
            for lengths in ([4, 0, 9, 2], [7], [3, 3, 3], [1, 12])
        ]
        want = [p.train(layer)[1] for p in parts]
        with ThreadPoolExecutor(4) as pool:
            got = pool.map(lambda k: parts[k % 4].train(layer)[1], range(60))
            assert_same(got, want * 15)


def test_every_execution_argument_of_the_guide_has_a_place(repo: Path) -> None:
    declared = (repo / "src" / "onernn" / "backend" / "onednn" / "dnnl.cdef.h").read_text()
    names = set(re.findall(r"define DNNL_ARG_(\w+)", declared))
    general = {"SRC", "DST", "WEIGHTS"}
    names -= general | {name for name in names if name.startswith("ATTR_")}
    gradients = {name.removeprefix("DIFF_") for name in names if name.startswith("DIFF_")}
    page = (repo / "design" / "0051-onednn-rnn-guide.md").read_text()
    table = page.split("## Execution Arguments")[1].split("##")[0]
    row = r"^\| ([A-Z_]+) \| `(.*?)` \| (?:none|`(.*?)`) \| `test"
    places = {name: each for name, *each in re.findall(row, table, re.MULTILINE)}
    assert names == places.keys() | {f"DIFF_{name}" for name in gradients}
    assert gradients == {name for name, (_, gradient) in places.items() if gradient}
    fields = {f.name for f in dataclasses.fields(Gradients)}
    for value, gradient in places.values():
        owner, _, attribute = value.partition(".")
        if owner == "RnnWeights":
            assert attribute in RnnWeights.__dataclass_fields__
        for found in re.findall(r"^backward\(\.\.\.\)\.(\w+)", gradient):
            assert found in fields


@pytest.mark.long
def test_memory_stays_flat_over_training_steps_of_changing_shapes() -> None:
    """Weights change with each step, so does the layer; tapes and packed weights must go."""
    code = """
        import numpy as np
        from onernn import Cell, Ragged, RnnSpec, RnnWeights
        from onernn.backend import open_backend
        from support.interpreters import resident

        rng = np.random.default_rng(0)
        backend, spec = open_backend("onednn", threads=1), RnnSpec(Cell.LSTM, 128, 256)
        shapes = ((1, 1, 128, 4, 256), (1, 1, 256, 4, 256), (1, 1, 4, 256))
        arrays = [rng.uniform(-0.05, 0.05, shape).astype(np.float32) for shape in shapes]

        def step():
            layer = backend.prepare(spec, RnnWeights(*arrays), strict=True)
            lengths = rng.integers(0, 24, 8)
            x = Ragged.from_lengths(np.ones((lengths.sum(), 128), np.float32), lengths)
            y, _, tape = layer.run_training(x)
            gradients = layer.backward(tape, y).layers[0]
            for array, gradient in zip(arrays, gradients.__dict__.values()):
                array -= 1e-4 * gradient

        for _ in range(50):
            step()
        before = resident()
        for _ in range(200):
            step()
        print(resident() - before)
    """
    (grown,) = printed(code)
    # 1.5 MB of weights are packed twice a step, and a tape holds 6 MB: 200 leaked ones are 1 GB.
    assert float(grown) < 48


def test_the_example_learns(repo: Path) -> None:
    done = run_python(repo / "examples" / "train_lstm.py", "--steps", 60)
    losses = [float(line.split()[-1]) for line in done.stdout.splitlines() if "loss" in line]
    assert losses[-1] < 0.8 * losses[0]
