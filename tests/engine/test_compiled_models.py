"""A compiled file gives the bits of the session that it was made of, or an error."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.compiled_models import compiled, models
from support.graphs import new_node
from support.layers import random_weights
from support.random_models import random_trial
from support.taggers import sentences, tagger

from onernn import (
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
from onernn.ir.graph import Value

pytestmark = pytest.mark.usefixtures("built")


def assert_same(got: dict[str, Any], want: dict[str, Any]) -> None:
    assert got.keys() == want.keys()
    for name, value in want.items():
        levels = [
            (*v.outer, v.offsets) if isinstance(v, Ragged) else () for v in (got[name], value)
        ]
        assert [each.tolist() for each in levels[0]] == [each.tolist() for each in levels[1]]
        a, b = (v.data if isinstance(v, Ragged) else v for v in (got[name], value))
        assert a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes(), name


def opened(graph: Graph, path: Path, **options: Any) -> CompiledModel:
    compile_model(graph, path, **options)
    return Session(path)  # type: ignore[return-value]


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
            assert_same(model.run(feed), want)
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
    session = Session(trial.graph, backend="kernels")
    for feed in trial.feeds:
        assert_same(model.run(feed), session.run(feed))


@pytest.mark.parametrize("dtype", ["f16", "bf16", "u8", "int8-dynamic", "int8-weights"])
@pytest.mark.parametrize("cell", [Cell.RNN_TANH, Cell.LSTM, Cell.GRU, Cell.LBR_GRU])
def test_layers_of_every_precision_have_the_same_bits(
    cell: Cell, dtype: str, tmp_path: Path
) -> None:
    spec = RnnSpec(cell, 9, 21, direction="bidirectional_concat")
    layers = {"spec": spec, "weights": random_weights(spec, 0)[0]}
    node = new_node("Rnn", "x", "y h c" if cell is Cell.LSTM else "y h", **layers)
    graph = Graph(
        "layer", (Value("x", "float32", (None, None, 9)),), (Value("y"), Value("h")), (node,), {}
    )
    model = opened(graph, tmp_path / "m.onernn", dtype=dtype)
    session = Session(graph, dtype, backend="kernels")
    for shape in ((5, 3, 9), (1, 1, 9), (0, 2, 9)):
        feed = {"x": np.random.default_rng(0).normal(size=shape).astype(np.float32)}
        assert_same(model.run(feed), session.run(feed))


def step_of_gru() -> Graph:
    spec = RnnSpec(Cell.LBR_GRU, 4, 6)
    layer = {"spec": spec, "weights": random_weights(spec, 3)[0]}
    inputs = (Value("x", "float32", (1, 1, 4)), Value("h", "float32", (1, 1, 1, 6)))
    nodes = (new_node("Rnn", "x h", "y n", **layer), new_node("Tanh", "y", "z"))
    return Graph("step", inputs, (Value("z"), Value("n")), nodes, {})


def test_a_stream_keeps_its_states_and_begins_anew(tmp_path: Path) -> None:
    graph = step_of_gru()
    model = opened(graph, tmp_path / "m.onernn", states={"h": "n"})
    session, steps, other = Session(graph, backend="kernels"), model.steps(), model.steps()
    frames = np.random.default_rng(0).normal(size=(6, 1, 1, 1, 4)).astype(np.float32)[:, 0]
    for _ in range(2):
        h = np.zeros((1, 1, 1, 6), np.float32)
        for frame in frames:
            want = session.run({"x": frame, "h": h})
            h = np.asarray(want.pop("n"))
            assert_same(steps.run({"x": frame}), want)
            assert_same(model.run({"x": frame, "h": h}), session.run({"x": frame, "h": h}))
        steps.reset()
    zeros = {"x": frames[0], "h": np.zeros((1, 1, 1, 6), np.float32)}
    assert_same(other.run({"x": frames[0]}), {"z": session.run(zeros)["z"]})


def test_states_that_are_other_states_are_read_before_they_are_written(tmp_path: Path) -> None:
    """Two states change places; an output is a state as it was."""
    inputs = (Value("x", "float32", (2,)), Value("a", "float32", (2,)), Value("b", "float32", (2,)))
    nodes = (
        new_node("sum = Add b x"),
        new_node("m = Identity a"),
        new_node("n = Identity sum"),
        new_node("was = Identity b"),
    )
    graph = Graph("places", inputs, (Value("n"), Value("m"), Value("was")), nodes, {})
    steps = opened(graph, tmp_path / "m.onernn", states={"a": "n", "b": "m"}).steps()
    a = b = np.zeros(2, np.float32)
    for step in range(5):
        x = np.full(2, step + 1, np.float32)
        made = steps.run({"x": x})
        assert np.asarray(made["was"]).tolist() == b.tolist()
        a, b = b + x, a


def test_sequences_become_steps_with_exposed_states(tmp_path: Path) -> None:
    spec = RnnSpec(Cell.GRU, 4, 6)
    layer = {"spec": spec, "weights": random_weights(spec, 3)[0]}
    nodes = (new_node("Rnn", "x", "y", **layer), new_node("Relu", "y", "z"))
    graph = Graph("whole", (Value("x", "float32", (None, 1, 4)),), (Value("z"),), nodes, {})
    steps = opened(graph, tmp_path / "m.onernn", expose_states=True).steps()
    x = np.random.default_rng(0).normal(size=(7, 1, 4)).astype(np.float32)
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
    environment = {**os.environ, "ONERNN_MAX_ISA": "v2"}
    environment["PYTHONPATH"] = str(Path(__file__).parents[1])
    subprocess.run([sys.executable, "-c", script, str(path)], env=environment, check=True)
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
                assert_same(model.run(feeds[(at + turn) % 8]), want[(at + turn) % 8])
            except BaseException as error:
                wrong.append(error)

    threads = [threading.Thread(target=work, args=(at,)) for at in range(8)]
    [each.start() for each in threads]
    [each.join() for each in threads]
    assert not wrong
    assert_same(pickle.loads(pickle.dumps(model)).run(feeds[0]), want[0])


def test_wrong_inputs_are_named(tmp_path: Path) -> None:
    feed = sentences(np.random.default_rng(0), 2)
    model = opened(tagger(), tmp_path / "m.onernn")
    (name,) = feed
    with pytest.raises(ShapeError, match=f"missing .'{name}'"):
        model.run({})
    with pytest.raises(ShapeError, match="is ragged"):
        model.run({name: np.zeros(3, np.int64)})
    with pytest.raises(ShapeError, match="an index or a length that it does not take"):
        model.run({name: Ragged(np.array([10**6]), np.array([0, 1]))})
    with pytest.raises(ShapeError, match="more than 100 bytes"):
        Session(tmp_path / "m.onernn", max_bytes=100).run(feed)


@pytest.mark.parametrize("content", [b"", b"onernn\r\n", b"no model" * 20])
def test_what_is_no_compiled_file_is_told(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "m.onernn").write_bytes(content)
    with pytest.raises((ModelFormatError, UnsupportedError), match="m.onernn"):
        Session(tmp_path / "m.onernn")
    with pytest.raises(FileNotFoundError, match="none.onernn"):
        Session(tmp_path / "none.onernn")


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
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-c", _DAMAGES, str(tmp_path)]
    subprocess.run(command, env=environment, check=True, timeout=300)


def test_a_state_beyond_all_memory_is_refused_at_the_first_step(tmp_path: Path) -> None:
    path, kernels = tmp_path / "m.onernn", load_kernels()
    inputs = (Value("x", "float32", ()), Value("h", "float32", (977,)))
    graph = Graph("sum", inputs, (Value("n"),), (new_node("n = Add h x"),), {})
    compile_model(graph, path, states={"h": "n"})
    words = np.frombuffer(path.read_bytes(), np.int64).copy()
    words[words == 977] = 1 << 50
    words[words == 4 * 977] = 4 << 50
    words[2] = kernels.lib.onernn_checksum(kernels.ffi.from_buffer(words[3:]), words[3:].nbytes)
    path.write_bytes(words.tobytes())
    stream = CompiledModel(path).steps()
    with pytest.raises(OnernnError, match=f"its states take {4 << 50} bytes, more than "):
        stream.run({"x": np.float32(1)})


def test_every_model_has_a_compiled_file(tmp_path: Path) -> None:
    assert [name for name, _ in compiled(tmp_path)] == [*models()]


def test_other_commands_say_what_a_compiled_model_is(tmp_path: Path) -> None:
    (tmp_path / "m.onernn").write_bytes(b"")
    with pytest.raises(UnsupportedError, match="a compiled model has no graph"):
        load(tmp_path / "m.onernn")
