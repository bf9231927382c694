"""A compiled file gives the bits of the session that it was made of, or an error."""

from __future__ import annotations

import os
import pickle
import shlex
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.arrays import uniform
from support.checking import assert_same_bits
from support.compiled_models import compiled, models
from support.graphs import input_of, new_node, new_nodes, rnn_node, small, small_graph
from support.interpreters import printed, resident
from support.random_models import random_trial
from support.taggers import sentences, tagger

from onernn import (
    BudgetError,
    Cell,
    Graph,
    ModelFormatError,
    OnernnError,
    Ragged,
    RnnSpec,
    Session,
    ShapeError,
    UnsupportedError,
    load,
)
from onernn.backend.compiled.library import load_kernels
from onernn.engine.compiled_model import CompiledModel
from onernn.engine.compiling import compile_model
from onernn.engine.emit.pipeline import read_declared

pytestmark = pytest.mark.usefixtures("built")


def opened(graph: Graph, path: Path, **options: Any) -> CompiledModel:
    compile_model(graph, path, **options)
    return Session(path)  # type: ignore[return-value]


def check_same(model: CompiledModel, graph: Graph, *feeds: Any, dtype: str = "f32") -> None:
    """The bits of a session."""
    session = Session(graph, dtype, backend="kernels")
    for feed in feeds:
        assert_same_bits(model.run(feed), session.run(feed))


def test_every_model_whose_plan_is_whole_has_the_bits_of_its_session(tmp_path: Path) -> None:
    same = 0
    for name, (graph, feeds) in models().items():
        session = Session(graph, backend="kernels")
        try:
            model = opened(graph, tmp_path / "m.onernn")
        except UnsupportedError as error:
            assert "no compiled file" in str(error), name
            left = plans(session, feeds[0])
            assert any(plan is None or plan.is_partial or plan.outside for plan in left)
            continue
        for feed in (*feeds, feeds[0]):
            try:
                want = session.run(feed)
            except OnernnError:
                with pytest.raises(OnernnError):
                    model.run(feed)
                continue
            assert_same_bits(model.run(feed), want)
            same += 1
    assert same > 60


def plans(session: Session, feed: Any) -> list[Any]:
    """Those of a session for a feed; None where there is none."""
    try:
        return [session._plan(feed)]
    except OnernnError:
        return [None]


@pytest.mark.parametrize("seed", range(12))
def test_random_graphs_have_the_bits_of_their_sessions(seed: int, tmp_path: Path) -> None:
    trial = random_trial(seed)
    try:
        model = opened(trial.graph, tmp_path / "m.onernn")
    except UnsupportedError:
        return
    check_same(model, trial.graph, *trial.feeds)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "u8", "int8-dynamic", "int8-weights"])
@pytest.mark.parametrize("cell", [Cell.RNN_TANH, Cell.LSTM, Cell.GRU, Cell.LBR_GRU])
def test_layers_of_every_precision_have_the_same_bits(
    cell: Cell, dtype: str, tmp_path: Path
) -> None:
    spec = RnnSpec(cell, 9, 21, direction="bidirectional_concat")
    node = rnn_node(f"y h{' c' * (cell is Cell.LSTM)} = Rnn x", spec)
    graph = small((node,), {"x": (None, None, 9)}, "y h")
    model = opened(graph, tmp_path / "m.onernn", dtype=dtype)
    feeds = ({"x": uniform(*shape)} for shape in ((5, 3, 9), (1, 1, 9), (0, 2, 9)))
    check_same(model, graph, *feeds, dtype=dtype)


def step_of_gru() -> Graph:
    spec = RnnSpec(Cell.LBR_GRU, 4, 6)
    nodes = (rnn_node("y n = Rnn x h", spec, 3), new_node("z = Tanh y"))
    return small(nodes, {"x": (1, 1, 4), "h": (1, 1, 1, 6)}, "z n")


def test_a_stream_keeps_its_states_and_begins_anew(tmp_path: Path) -> None:
    graph = step_of_gru()
    model = opened(graph, tmp_path / "m.onernn", states={"h": "n"})
    session, steps, other = Session(graph, backend="kernels"), model.steps(), model.steps()
    frames = uniform(6, 1, 1, 1, 4)[:, 0]
    for _ in range(2):
        h = np.zeros((1, 1, 1, 6), np.float32)
        for frame in frames:
            want = session.run({"x": frame, "h": h})
            h = np.asarray(want.pop("n"))
            assert_same_bits(steps.run({"x": frame}), want)
            assert_same_bits(model.run({"x": frame, "h": h}), session.run({"x": frame, "h": h}))
        steps.reset()
    zeros = {"x": frames[0], "h": np.zeros((1, 1, 1, 6), np.float32)}
    assert_same_bits(other.run({"x": frames[0]}), {"z": session.run(zeros)["z"]})


def test_states_that_are_other_states_are_read_before_they_are_written(tmp_path: Path) -> None:
    """Two states change places; an output is a state as it was."""
    nodes = (
        new_node("sum = Add b x"),
        new_node("m = Identity a"),
        new_node("n = Identity sum"),
        new_node("was = Identity b"),
    )
    graph = small(nodes, {"x": (2,), "a": (2,), "b": (2,)}, "n m was")
    steps = opened(graph, tmp_path / "m.onernn", states={"a": "n", "b": "m"}).steps()
    a = b = np.zeros(2, np.float32)
    for step in range(5):
        x = np.full(2, step + 1, np.float32)
        made = steps.run({"x": x})
        assert np.asarray(made["was"]).tolist() == b.tolist()
        a, b = b + x, a


def test_outputs_inside_inputs_may_change_places(tmp_path: Path) -> None:
    """Each output is an input, and gets the memory of another input."""
    nodes = new_nodes("p = Identity b\nq = Identity c\nr = Identity a")
    model = opened(small(nodes, {name: (4,) for name in "abc"}, "p q r"), tmp_path / "m.onernn")
    arrays = [uniform(4, seed=seed) for seed in range(3)]
    lib, ffi, stream = model.lib, model.ffi, model._idle[0]._stream
    for number, array in enumerate(arrays):
        at = ffi.from_buffer(array)
        model.check(lib.onernn_give(stream, number, at, ffi.NULL))
        model.check(lib.onernn_take(stream, 3 + number, at, array.nbytes))
    want = [arrays[k].tolist() for k in (1, 2, 0)]
    model.check(lib.onernn_run(stream))
    assert [array.tolist() for array in arrays] == want


def test_constant_outputs_are_in_the_file(tmp_path: Path) -> None:
    numbers = {"a": np.arange(3, dtype="f4"), "b": np.array([True, False]), "c": np.int64(7)}
    nodes = new_nodes("y = Relu x\nk = Add a a\nn = Add c h")
    graph = small(nodes, {"x": (None, 3), "h": ("int64",)}, "k y a n b c", **numbers)
    model = opened(graph, tmp_path / "m.onernn", states={"h": "c"})
    steps, x = model.steps(), uniform(5, 3)
    wanted = {"k": 2 * numbers["a"], "y": np.maximum(x, 0), "a": numbers["a"], "b": numbers["b"]}
    for n in (7, 14):
        assert_same_bits(steps.run({"x": x}), {**wanted, "n": np.array(n)})


def sequences(*shape: int | str | None) -> Graph:
    """A layer over time, whose states a file can expose."""
    rnn = rnn_node("y = Rnn x", RnnSpec(Cell.GRU, 4, 6), 3)
    return small((rnn, new_node("z = Relu y")), {"x": shape}, "z")


def one_step(batch_of_x: int | str | None, batch_of_h: int | str | None) -> Graph:
    sizes = {"x": (1, batch_of_x, 4), "h": (1, 1, batch_of_h, 6)}
    return replace(step_of_gru(), inputs=tuple(input_of(*each) for each in sizes.items()))


OPEN = {
    "open": (one_step(None, None), {"states": {"h": "n"}}),
    "named": (one_step("N", "N"), {"states": {"h": "n"}}),
    "exposed, open": (sequences(None, None, 4), {"expose_states": True}),
    "exposed, named": (sequences("T", "N", 4), {"expose_states": True}),
}


@pytest.mark.parametrize("name", OPEN)
def test_an_open_size_of_a_state_is_refused_with_options_that_suffice(
    name: str, tmp_path: Path
) -> None:
    """The file would refuse each call with another size."""
    graph, options = OPEN[name]
    with pytest.raises(UnsupportedError) as error:
        compile_model(graph, tmp_path / "m.onernn", **options)
    assert not (tmp_path / "m.onernn").exists()
    open_axes, advice = error.value.refusals
    assert open_axes.where in ("h", "h0") and "open axes 2:" in open_axes.reason
    words = shlex.split(advice.reason.partition("pass ")[2].replace("?", "3"))
    assert {*words[::2]} == {"--input"}
    model = opened(graph, tmp_path / "m.onernn", **options, inputs=read_declared(words[1::2]))
    steps, x = model.steps(), uniform(5, 1, 3, 4)
    fed = {name: zeros_of(model, name) for name in model.states if name == "h"}
    session = Session(OPEN[name.replace("named", "open")][0], backend="kernels")
    assert_same_bits(
        {"z": steps.run({"x": x[0]})["z"]}, {"z": session.run({"x": x[0], **fed})["z"]}
    )
    with pytest.raises(ShapeError, match="input 'x': axis 1: expected 3, got 2"):
        steps.run({"x": x[0, :, :2]})


def zeros_of(model: CompiledModel, name: str) -> Any:
    (value,) = (value for value in model.inputs if value.name == name)
    return np.zeros(value.shape or (), value.dtype)


def test_a_state_has_the_size_that_the_other_inputs_leave(tmp_path: Path) -> None:
    model = opened(one_step(2, None), tmp_path / "m.onernn", states={"h": "n"})
    assert zeros_of(model, "h").shape == (1, 1, 2, 6)
    assert model.steps().run({"x": uniform(1, 2, 4)})["z"].shape == (1, 2, 6)


@pytest.mark.parametrize(
    "nodes",
    [
        "n = Concat h x axis=0",
        "n = Concat h wide axis=0",
        "s = Add h x\nn = Cast s to='int64'",
        "s = Add h x\nn = Unsqueeze s zero",
    ],
)
def test_a_next_state_of_another_type_is_refused(nodes: str, tmp_path: Path) -> None:
    """Every run after the first one would be refused."""
    inputs = {"x": (3,), "wide": (None,), "h": (3,)}
    graph = small(new_nodes(nodes), inputs, "n", zero=np.array([0]))
    with pytest.raises(UnsupportedError) as error:
        compile_model(graph, tmp_path / "m.onernn", states={"h": "n"})
    assert error.value.refusal.where == "h" and "'n'" in error.value.refusal.reason
    assert not (tmp_path / "m.onernn").exists()


def test_sizes_that_contradict_each_other_are_refused_with_those_that_fit(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError) as error:
        compile_model(one_step(2, 1), tmp_path / "m.onernn")
    said = {each.where: each.reason for each in error.value.refusals}
    assert "axis 1: expected 1, which other inputs need, got 2" in said["x"]
    assert "axis 2: expected 2, which other inputs need, got 1" in said["h"]
    narrow = small((new_node("y = Conv x w"),), {"x": (1, 1, 2)}, "y", w=uniform(1, 1, 4))
    with pytest.raises(UnsupportedError):
        compile_model(narrow, tmp_path / "m.onernn")
    with pytest.raises(UnsupportedError, match="got both"):
        compile_model(sequences(None, 1, 4), "m", expose_states=True, states={"x": "z"})


def test_sizes_that_do_not_fit_name_the_input_and_both_numbers(tmp_path: Path) -> None:
    nodes = (rnn_node("y n = Rnn x h", RnnSpec(Cell.LBR_GRU, 4, 6), 3),)
    graph = small(nodes, {"x": (None, None, 4), "h": (1, 1, None, 6)}, "y n")
    model = opened(graph, tmp_path / "m.onernn")
    fits = {"x": uniform(5, 2, 4), "h": uniform(1, 1, 2, 6)}
    check_same(model, graph, fits)
    with pytest.raises(
        ShapeError, match=r"input '\w': axis . is [23], expected [23] .*h \(1, 1, 3, 6\)"
    ):
        model.run({**fits, "h": uniform(1, 1, 3, 6)})
    with pytest.raises(ShapeError, match="input 'x': axis 2: expected 4, got 5"):
        model.run({**fits, "x": uniform(5, 2, 5)})
    check_same(model, graph, fits)


def test_a_slice_longer_than_its_axis_names_the_sizes_and_the_option(tmp_path: Path) -> None:
    nodes = (new_node("z = Neg x"), new_node("y = Slice z first last"))
    graph = small(nodes, {"x": (None, 3)}, first=[0], last=[9])
    feed = {"x": uniform(5, 3)}
    with pytest.raises(ShapeError, match=r"inputs x \(5, 3\); compile .* with --input"):
        opened(graph, tmp_path / "m.onernn").run(feed)
    declared = {"x": input_of("x", (5, 3))}
    model = opened(graph, tmp_path / "m.onernn", inputs=declared)
    assert_same_bits(model.run(feed), {"y": -feed["x"]})


def test_known_sizes_of_inputs_are_declared(tmp_path: Path) -> None:
    graph = small((new_node("y = Add a b"),), {"a": (None, 3), "b": (2, 3)}, "y")
    assert [value.shape for value in opened(graph, tmp_path / "m.onernn").inputs] == [(2, 3)] * 2


def test_a_value_of_more_axes_than_the_library_counts_is_not_written(tmp_path: Path) -> None:
    graph = small(new_nodes("y = Reshape x sizes"), {"x": (2,)}, sizes=[1] * 16 + [2])
    with pytest.raises(UnsupportedError, match="y: expected at most 16 axes, got 17"):
        compile_model(graph, tmp_path / "m.onernn")
    assert not (tmp_path / "m.onernn").exists()


@pytest.mark.parametrize(
    ("streams", "why"), [(False, "sizes change in the first calls"), (True, "first onernn convert")]
)
def test_the_states_of_windows_that_read_later_steps_are_refused(
    streams: bool, why: str, tmp_path: Path
) -> None:
    nodes = (new_node("y = Conv z w", pads=(1, 1)), new_node("z = Transpose t", perm=(1, 2, 0)))
    layer = rnn_node("t = Rnn x", RnnSpec(Cell.GRU, 4, 6), 3)
    graph = small((layer, *nodes[::-1]), {"x": (None, 1, 4)}, w=uniform(2, 6, 3))
    with pytest.raises(UnsupportedError, match=why):
        compile_model(graph, tmp_path / "m.onernn", expose_states=True, streams=streams)


@pytest.mark.parametrize("name", ["tagger", "documents", "convolution", "loops: early end", "gru"])
def test_every_limit_of_bytes_allows_a_run_or_raises_a_budget_error(
    name: str, tmp_path: Path
) -> None:
    known = {**models(), "gru": (sequences(None, None, 4), [{"x": uniform(200, 3, 4)}])}
    graph, (feed, *_) = known[name]
    compile_model(graph, tmp_path / "m.onernn")
    want, ran = Session(graph, backend="kernels").run(feed), 0
    for limit in (4**power for power in range(14)):
        try:
            assert_same_bits(Session(tmp_path / "m.onernn", max_bytes=limit).run(feed), want)
            ran += 1
        except BudgetError:
            assert ran == 0
    assert 0 < ran < 14


def test_a_lower_limit_frees_memory_and_holds_for_the_next_run(tmp_path: Path) -> None:
    nodes = (new_node("a = Exp x"), new_node("y = ReduceSum a"))
    model = opened(small(nodes, {"x": (None,)}, "y"), tmp_path / "m.onernn")
    feed = {"x": np.zeros(1 << 24, np.float32)}
    stream = model._idle[0]
    stream.run(model.inputs, feed)
    held = resident()
    model.check(model.lib.onernn_limit(stream._stream, 1 << 20, 1))
    assert held - resident() > 48
    for _ in range(2):
        with pytest.raises(BudgetError, match=f"x .{1 << 24}.: .* {1 << 20} bytes"):
            stream.run(model.inputs, feed)
    assert stream.run(model.inputs, {"x": feed["x"][:9]})["y"].item() == 9


def test_a_run_that_found_no_memory_for_an_output_leaves_the_next_run_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = small((new_node("a = Relu x"), new_node("b = Neg x")), {"x": (None, 3)}, "a b")
    model, session = opened(graph, tmp_path / "m.onernn"), Session(graph, backend="kernels")
    feeds = [{"x": uniform(count, 3)} for count in (9, 4, 20)]
    want = [session.run(feed) for feed in feeds]
    for feed, right in zip(feeds, want, strict=True):
        arrays = iter([np.empty(feed["x"].shape, np.float32)])  # of the first output

        def empty(shape: Any, dtype: Any, arrays: Any = arrays) -> np.ndarray:
            if (array := next(arrays, None)) is None:
                raise MemoryError
            return array

        with monkeypatch.context() as patch, pytest.raises(MemoryError):
            patch.setattr("onernn.engine.compiled_model.np.empty", empty)
            model.run(feed)
        assert_same_bits(model.run(feed), right)


WITHOUT_MEMORY = """
    import resource, sys
    import numpy as np
    from onernn import BudgetError, Ragged
    from onernn.engine.compiled_model import CompiledModel

    def run(count):
        x = Ragged.from_lengths(np.ones((count, 4), "f4"), [count])
        return model.run({"x": x})["y"].data.sum()

    model = CompiledModel(sys.argv[1], threads=1)
    want = run(10)
    in_use = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (in_use + (150 << 20),) * 2)
    try:
        run(400_000)  # 98 MB for y and as many for each inner layer
    except BudgetError:
        print("refused", run(10) == want)
"""


def test_a_batch_that_found_no_memory_takes_none_from_later_batches(tmp_path: Path) -> None:
    graph = small([rnn_node("y = Rnn x", RnnSpec(Cell.LSTM, 4, 64, layers=3))], {"x": [None, 4]})
    compile_model(graph, tmp_path / "m.onernn")
    assert printed(WITHOUT_MEMORY, tmp_path / "m.onernn") == ["refused", "True"]


@pytest.mark.parametrize("threads", [0, -1, 1.5])
def test_numbers_of_threads_are_checked(threads: Any, tmp_path: Path) -> None:
    compile_model(tagger(), tmp_path / "m.onernn")
    with pytest.raises(ValueError, match=f"threads: expected at least 1, got {threads}"):
        Session(tmp_path / "m.onernn", threads=threads)


def test_no_run_depends_on_the_runs_before(tmp_path: Path) -> None:
    """Sizes, dtypes and strides change, and some inputs are refused."""
    nodes = (new_node("y = MatMul x w"), new_node("z = Add y b"))
    graph = small(nodes, {"x": (None, 3), "b": (None, 3)}, "z y", w=uniform(3, 3))
    model, session = opened(graph, tmp_path / "m.onernn"), Session(graph, backend="kernels")
    x = {n: uniform(n, 3) for n in (0, 1, 4)}
    feeds: list[Any] = [{"x": x[n], "b": x[n]} for n in (4, 4, 1, 0, 4)]
    feeds += [{"x": x[4].astype(float), "b": np.asfortranarray(x[4])}, {"b": x[4], "x": x[4][::2]}]
    feeds += [{"x": x[4]}, {"x": x[4], "b": x[4], "c": x[4]}, {"x": x[4], "c": x[4]}, None]
    feeds += [{"x": x[4], "b": x[4][:, :2]}, {"x": x[4], "b": Ragged(x[4], np.array([0, 4]))}]
    refused = 0
    for turn in np.random.default_rng(0).integers(len(feeds), size=200):
        feed = feeds[turn]
        try:
            want = session.run(feed)
        except OnernnError:
            refused += 1
            with pytest.raises(ShapeError):
                model.run(feed)
            continue
        assert_same_bits(model.run(feed), want)
    assert 50 < refused < 150


def test_outputs_have_the_offsets_of_their_own_input(tmp_path: Path) -> None:
    """Even if two inputs had the same array as offsets in a run before."""
    nodes = (
        new_node("y = Tanh a"),
        new_node("z = Relu b"),
        new_node("s = SequencePool b", kind="max"),
    )
    graph = small(nodes, {"a": [None, 3], "b": [None, 3]}, "y z s")
    model = opened(graph, tmp_path / "m.onernn")
    a = Ragged(uniform(5, 3), np.array([0, 2, 5]))
    b = Ragged(uniform(5, 3), np.array([0, 4, 5]))
    feeds = {"a": a, "b": a.with_data(b.data)}, {"a": a, "b": b}, {"a": b, "b": a}
    check_same(model, graph, *feeds)


def test_sequences_become_steps_with_exposed_states(tmp_path: Path) -> None:
    graph = sequences(None, 1, 4)
    steps = opened(graph, tmp_path / "m.onernn", expose_states=True).steps()
    x = uniform(7, 1, 4)
    parts = [steps.run({"x": part})["z"] for part in np.split(x, [1, 4])]
    want = Session(graph, backend="kernels").run({"x": x})["z"]
    assert np.concatenate(parts).tobytes() == np.asarray(want).tobytes()


def test_what_only_python_runs_is_refused_by_name(tmp_path: Path) -> None:
    graph = tagger(in_python=True)
    with pytest.raises(UnsupportedError, match="no compiled file.*\n.*only Python runs it"):
        compile_model(graph, tmp_path / "m.onernn")
    assert not (tmp_path / "m.onernn").exists()


def test_a_file_names_no_instruction_set(tmp_path: Path) -> None:
    """The file is the same whichever kernels wrote it; each runs it with its own bits."""
    script = (
        "import sys, numpy as np, onernn; from support.taggers import sentences, tagger;"
        "from onernn.engine.compiling import compile_model; graph = tagger();"
        "path = sys.argv[1]; feed = sentences(np.random.default_rng(0), 3);"
        "compile_model(graph, path + '.own.onernn');"
        "got = onernn.Session(path).run(feed);"
        "want = onernn.Session(graph, backend='kernels').run(feed);"
        "assert all(got[n].data.tobytes() == want[n].data.tobytes() for n in want)"
    )
    path = tmp_path / "m.onernn"
    compile_model(tagger(), path)
    printed(script, path, ONERNN_MAX_ISA="v2")
    assert Path(f"{path}.own.onernn").read_bytes() == path.read_bytes()


def test_threads_share_a_model_and_a_copy_travels(tmp_path: Path) -> None:
    graph, rng = tagger(), np.random.default_rng(0)
    model = opened(graph, tmp_path / "m.onernn")
    feeds = [sentences(rng, count) for count in range(1, 9)]
    want = [Session(graph, backend="kernels").run(feed) for feed in feeds]
    wrong = []

    def work(at: int) -> None:
        for turn in range(40):
            try:
                assert_same_bits(model.run(feeds[(at + turn) % 8]), want[(at + turn) % 8])
            except BaseException as error:
                wrong.append(error)

    threads = [threading.Thread(target=work, args=(at,)) for at in range(8)]
    [each.start() for each in threads]
    [each.join() for each in threads]
    assert not wrong
    assert_same_bits(pickle.loads(pickle.dumps(model)).run(feeds[0]), want[0])


def test_wrong_inputs_are_named(tmp_path: Path) -> None:
    feed = sentences(np.random.default_rng(0), 2)
    model = opened(tagger(), tmp_path / "m.onernn")
    (name,) = feed
    with pytest.raises(ShapeError, match=f"missing .'{name}'"):
        model.run({})
    with pytest.raises(ShapeError, match="is ragged"):
        model.run({name: np.zeros(3, np.int64)})


@pytest.mark.parametrize("wrong, label", [("a", "'u'"), ("b", "'v'")])
def test_an_index_outside_of_its_range_names_the_operator(
    wrong: str, label: str, tmp_path: Path
) -> None:
    nodes = new_nodes("u = Gather table a\nv = Gather table b")
    table = {"table": np.ones((4, 3), np.float32)}
    graph = small_graph(nodes, "u v", table, a=("int64", 2), b=("int64", 2))
    model = opened(graph, tmp_path / "m.onernn")
    feed = {"a": np.array([0, 3]), "b": np.array([0, 3])}
    model.run(feed)
    with pytest.raises(ShapeError, match=label):
        model.run(feed | {wrong: np.array([0, 4])})


def test_a_name_that_c_would_cut_is_refused_before_a_file_is_written(tmp_path: Path) -> None:
    graph = small_graph([new_node("Relu", "a\0b", "y")], "y", {}, **{"a\0b": (2,)})
    with pytest.raises(UnsupportedError, match="NUL"):
        compile_model(graph, tmp_path / "m.onernn")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("content", [b"", b"onernn\r\n", b"no model" * 20])
def test_what_is_no_compiled_file_is_told(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "m.onernn").write_bytes(content)
    with pytest.raises((ModelFormatError, UnsupportedError), match="m.onernn"):
        Session(tmp_path / "m.onernn")
    with pytest.raises(FileNotFoundError, match="none.onernn"):
        Session(tmp_path / "none.onernn")


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_a_folder_or_a_pipe_is_refused_at_once(make: Any, tmp_path: Path) -> None:
    make(tmp_path / "m.onernn")
    with pytest.raises(
        ModelFormatError, match=r"m\.onernn: expected a file, got a folder or a pipe"
    ):
        Session(tmp_path / "m.onernn")


def test_every_damaged_byte_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "m.onernn"
    compile_model(tagger(), path)
    whole, rng = path.read_bytes(), np.random.default_rng(0)
    for _ in range(300):
        damaged, at = bytearray(whole), int(rng.integers(len(whole)))
        damaged[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged if rng.integers(4) else whole[:at])
        with pytest.raises((ModelFormatError, UnsupportedError)):
            Session(path)


_DAMAGES = """
import sys
import numpy as np
from pathlib import Path
from support.compiled_models import compiled, models
from onernn import CompiledModel, OnernnError
from onernn.backend.compiled.library import load_kernels

FEEDS, kernels, rng = models(), load_kernels(), np.random.default_rng(0)
path = Path(sys.argv[1], "damaged.onernn")
for name, file in [*compiled(Path(sys.argv[1]))]:
    whole = np.frombuffer(file.read_bytes(), np.int64)
    for _ in range(30):
        words = whole.copy()
        for _ in range(rng.integers(1, 4)):
            at, odd = int(rng.integers(5, words[4])), int(rng.choice(words[5 : words[4]]))
            words[at] = rng.choice([words[at] ^ (1 << int(rng.integers(63))), odd, 0, -1, 2**62])
        rest = words[3:]
        words[2] = kernels.lib.onernn_checksum(kernels.ffi.from_buffer(rest), rest.nbytes)
        path.write_bytes(words.tobytes())
        try:
            CompiledModel(path, 1, max_bytes=1 << 22, max_steps=2000).run(FEEDS[name][1][0])
        except OnernnError:
            continue
"""


def test_damage_under_a_right_checksum_gives_an_error_or_a_result(tmp_path: Path) -> None:
    """In a process of its own, which would crash; `make fuzz-compiled` watches every byte."""
    printed(_DAMAGES, tmp_path, seconds=300)


def test_a_state_beyond_all_memory_is_refused_at_the_first_step(tmp_path: Path) -> None:
    path, kernels = tmp_path / "m.onernn", load_kernels()
    graph = small((new_node("n = Add h x"),), {"x": (), "h": (977,)}, "n")
    compile_model(graph, path, states={"h": "n"})
    words = np.frombuffer(path.read_bytes(), np.int64).copy()
    words[words == 977] = 1 << 50
    words[words == 4 * 977] = 4 << 50
    words[2] = kernels.lib.onernn_checksum(kernels.ffi.from_buffer(words[3:]), words[3:].nbytes)
    path.write_bytes(words.tobytes())
    stream = CompiledModel(path).steps()
    with pytest.raises(OnernnError, match=f"states: .* got {4 << 50}"):
        stream.run({"x": np.float32(1)})


def test_every_model_has_a_compiled_file(tmp_path: Path) -> None:
    assert [name for name, _ in compiled(tmp_path)] == [*models()]


def test_other_commands_say_what_a_compiled_model_is(tmp_path: Path) -> None:
    (tmp_path / "m.onernn").write_bytes(b"")
    with pytest.raises(UnsupportedError, match="m.onernn"):
        load(tmp_path / "m.onernn")
