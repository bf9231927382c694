"""Models, sessions and layers in pickles, and in processes that share the pages of weights."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.checking import assert_same_bits
from support.graphs import new_node, small
from support.layers import attention_for, random_ragged, random_weights
from support.processes import large, run_of, run_shared
from support.random_models import random_trial
from support.taggers import sentences, tagger

import onernn
from onernn import Cell, Graph, Ragged, RnnSpec, RnnWeights, Session
from onernn.backend import open_backend
from onernn.backend.compiled import packing
from onernn.backend.compiled.library import load_kernels
from onernn.engine.sharing import SharedFileError
from onernn.fuse_passes import PASSES
from onernn.ir import errors
from onernn.ir.arrays import seal
from onernn.ir.ragged import data_of

PROTOCOLS = range(2, pickle.HIGHEST_PROTOCOL + 1)


def arrays_of(graph: Graph) -> list[np.ndarray]:
    found = list(graph.constants.values())
    for node in graph.nodes:
        for value in node.attributes.values():
            for each in value if isinstance(value, list | tuple) else [value]:
                found += each.arrays.values() if isinstance(each, RnnWeights) else []
                found += arrays_of(each) if isinstance(each, Graph) else []
    return found


def out_of_band(model: Any) -> tuple[bytes, list[pickle.PickleBuffer]]:
    buffers: list[pickle.PickleBuffer] = []
    return pickle.dumps(model, 5, buffer_callback=buffers.append), buffers


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("seed", range(4))
def test_a_graph_and_its_session_give_the_same_bits_on_arrival(seed: int, protocol: int) -> None:
    trial = random_trial(seed)
    session = Session(trial.graph, threads=1)
    arrived = pickle.loads(pickle.dumps(session, protocol))
    again = Session(pickle.loads(pickle.dumps(trial.graph, protocol)), threads=1)
    for feed in trial.feeds:
        want = session.run(feed)
        assert_same_bits(arrived.run(feed), want)
        assert_same_bits(again.run(feed), want)
    assert arrived.explain() == session.explain()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_nobody_may_change_stays_so(protocol: int) -> None:
    graph = pickle.loads(pickle.dumps(tagger(), protocol))
    assert len(arrays_of(graph)) > 5
    for array in arrays_of(graph):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
    with pytest.raises(TypeError, match="item assignment"):
        graph.constants["w"] = np.zeros(1)
    with pytest.raises(TypeError, match="item assignment"):
        graph.nodes[0].attributes["axis"] = 1
    with pytest.raises(AttributeError):
        graph.name = "other"
    offsets = pickle.loads(pickle.dumps(Ragged(np.ones(3), [0, 1, 3]), protocol)).offsets
    with pytest.raises(ValueError, match="read-only"):
        offsets[0] = 1


def test_numbers_travel_as_buffers_once_and_are_not_copied_on_arrival() -> None:
    table = seal(np.zeros((1000, 100), np.float32))
    both = {"a": table, "b": table}
    nodes = (new_node("c = Add a b"),)
    graph = small(nodes, {}, "c", **both)
    stream, buffers = out_of_band(graph)
    assert len(stream) < 2000 and [buffer.raw().nbytes for buffer in buffers] == [table.nbytes]
    content = bytes(buffers[0].raw())
    arrived = pickle.loads(stream, buffers=[content])
    assert arrived.constants["a"] is arrived.constants["b"]
    assert arrived.constants["a"].ctypes.data == np.frombuffer(content, np.uint8).ctypes.data


def test_copies_of_what_nobody_changes_are_itself_and_those_of_sessions_run() -> None:
    graph, feed = tagger(), sentences(np.random.default_rng(0), 9)
    session = Session(graph, threads=1)
    for copied in (copy.copy, copy.deepcopy):
        assert copied(graph) is graph
        assert copied(graph.nodes[0]) is graph.nodes[0]
        made = copied(session)
        assert made is not session
        assert_same_bits(made.run(feed), session.run(feed))
    ragged = feed["words"]
    copied_words = copy.deepcopy(ragged)
    copied_words.data[:] = 7
    assert not np.array_equal(ragged.data, copied_words.data)


def test_a_session_keeps_its_options() -> None:
    options: dict[str, Any] = {"dtype": "bf16", "threads": 1, "backend": "kernels", "strict": True}
    session = Session(tagger(), **options, passes=PASSES, max_bytes=10**7, max_steps=77)
    arrived = pickle.loads(pickle.dumps(session))
    assert arrived.explain() == session.explain()
    assert arrived.__getstate__().keys() == session.__getstate__().keys()
    for name in ("_max_bytes", "_max_steps", "_options", "_threads"):
        assert getattr(arrived, name) == getattr(session, name)
    assert arrived._passes == PASSES
    with pytest.raises(errors.BudgetError):
        arrived.run({"words": Ragged(np.zeros(10**6, np.int64), [0, 10**6])})


LAYERS = [
    (backend, dtype, cell)
    for backend in ("auto", "kernels", "onednn", "reference")
    for dtype in (("f32",) if backend == "reference" else ("f32", "bf16", "u8"))
    for cell in (Cell.LSTM, Cell.LBR_GRU, Cell.AUGRU)
]


@pytest.mark.parametrize("backend, dtype, cell", LAYERS)
def test_layers_give_the_same_bits_on_arrival(backend: str, dtype: str, cell: Cell) -> None:
    direction: Any = "bidirectional_concat" if cell is Cell.LSTM else "left2right"
    spec = RnnSpec(cell, 24, 20, layers=2, direction=direction)
    layer = open_backend(backend, threads=1).prepare(spec, random_weights(spec, 0), dtype=dtype)
    x = random_ragged([3, 0, 7, 1], 24, 1)
    want, ends = layer.run(x, None, attention_for(spec, x, 2))
    for protocol in PROTOCOLS:
        arrived = pickle.loads(pickle.dumps(layer, protocol))
        got, finals = arrived.run(x, None, attention_for(spec, x, 2))
        assert data_of(got).tobytes() == data_of(want).tobytes()
        assert [s.tobytes() for s in finals] == [s.tobytes() for s in ends]
        assert arrived.explain() == layer.explain()


def test_layers_train_on_arrival() -> None:
    spec = RnnSpec(Cell.GRU, 8, 16)
    layer = open_backend("kernels", threads=1).prepare(spec, random_weights(spec, 0))
    x = random_ragged([3, 2], 8, 1)
    dy = x.with_data(np.ones((5, 16), np.float32))
    made = []
    for each in (layer, pickle.loads(pickle.dumps(layer))):
        *_, tape = each.run_training(x)
        made.append(each.backward(tape, dy).layers[0].iter.tobytes())
    assert made[0] == made[1]


def test_weights_are_packed_again_only_for_other_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = RnnSpec(Cell.LSTM, 8, 16)
    layer = open_backend("kernels", threads=1).prepare(spec, random_weights(spec, 0))
    pickled, calls = pickle.dumps(layer), []
    write = packing.Numbers.write
    monkeypatch.setattr(
        packing.Numbers, "write", lambda *given: (calls.append(1), write(*given))[1]
    )
    pickle.loads(pickled)
    assert not calls
    sources = load_kernels().sources.encode()
    assert pickled.count(sources) == 1
    other = pickle.loads(pickled.replace(sources, b"?" * len(sources)))
    assert calls
    x = random_ragged([3, 2], 8, 1)
    assert data_of(other.run(x)[0]).tobytes() == data_of(layer.run(x)[0]).tobytes()


@pytest.mark.parametrize(
    "error",
    [
        errors.ModelFormatError("bad", "file.onnx", 7),
        errors.UnsupportedError("cannot be run:", (errors.Refusal("why", "where"),)),
        errors.ShapeError("x: expected"),
        errors.BudgetError("too much"),
        errors.LibraryError("a\nb"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_arrive_from_other_processes_as_they_were(error: Exception) -> None:
    arrived = pickle.loads(pickle.dumps(error))
    assert type(arrived) is type(error)
    assert str(arrived) == str(error) and vars(arrived) == vars(error)


@pytest.mark.parametrize("how", ["fork", "forkserver", "spawn"])
def test_sessions_run_in_pools_of_processes(how: str) -> None:
    session, feed = Session(tagger()), sentences(np.random.default_rng(0), 9)
    want = session.run(feed)
    with ProcessPoolExecutor(2, multiprocessing.get_context(how)) as pool:
        for got in pool.map(run_of, [session] * 4, [feed] * 4):
            assert_same_bits(got, want)


def test_processes_share_the_pages_of_weights(tmp_path: Path) -> None:
    session = Session(large(), threads=1, backend="kernels")
    feed = {"words": Ragged(np.arange(50), [0, 20, 50])}
    want = session.run(feed)
    bytes_in_all = sum(b.raw().nbytes for b in out_of_band(session)[1])
    assert bytes_in_all > 70e6
    context = multiprocessing.get_context("spawn")
    count = 4
    barrier, results = context.Barrier(count), context.Queue()
    with onernn.share(session, tmp_path) as shared:
        assert len(pickle.dumps(shared)) < 10_000
        given = (shared, feed, barrier, results)
        workers = [context.Process(target=run_shared, args=given) for _ in range(count)]
        for worker in workers:
            worker.start()
        found = [results.get(timeout=600) for _ in workers]
        for worker in workers:
            worker.join()
    for made, proportional, resident in found:
        assert_same_bits(made, want)
        # Table and packed weights are read, those that were given are not: two thirds of the file.
        shared_pages = 2 / 3 * bytes_in_all / 2**20
        assert resident - proportional > 0.9 * shared_pages * (count - 1) / count
    assert not list(tmp_path.iterdir())


def test_the_file_is_gone_afterwards_and_who_has_it_keeps_it(tmp_path: Path) -> None:
    session, feed = Session(tagger(), threads=1), sentences(np.random.default_rng(0), 9)
    with onernn.share(session, tmp_path) as shared:
        (file,) = tmp_path.iterdir()
        assert file.stat().st_mode & 0o777 == 0o600
        opened = shared.open()
    assert_same_bits(opened.run(feed), session.run(feed))
    with pytest.raises(SharedFileError, match=file.name):
        shared.open()
    with pytest.raises(OSError), onernn.share(session, tmp_path / "nowhere"):
        pass


def test_a_model_without_arrays_is_shared() -> None:
    graph = small((new_node("y = Relu x"),), {"x": (None, 2)}, "y")
    with onernn.share(Session(graph)) as shared:
        out = shared.open().run({"x": np.array([[-1, 2]], "f4")})
    assert np.asarray(out["y"]).tolist() == [[0, 2]]


@pytest.mark.parametrize("damage", ["cut", "empty", "other"])
def test_another_file_is_refused(tmp_path: Path, damage: str) -> None:
    with onernn.share(tagger(), tmp_path) as shared:
        (file,) = tmp_path.iterdir()
        if damage == "other":
            file.write_bytes(b"?" * file.stat().st_size)
        else:
            os.truncate(file, 0 if damage == "empty" else file.stat().st_size - 1)
        with pytest.raises(SharedFileError, match=file.name):
            shared.open()
