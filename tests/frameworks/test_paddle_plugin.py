"""Ours inside of Paddle's executor and paddle.inference, beside Paddle's own operators."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
from tests.frameworks.paddle_graphs import (
    Batch,
    PaddleGraph,
    SavedModel,
    Variable,
    batch,
    differences,
    tensor,
)

from onernn import Ragged, UnsupportedError, plugins_disabled
from onernn.adapters.paddle import optimize
from onernn.ir.arrays import Array

GRU = ("Hidden", "BatchGate", "BatchResetHiddenPrev", "BatchHidden")
LSTM = ("Hidden", "Cell", "BatchGate", "BatchCellPreAct")
FUSION_GRU = ("Hidden", "ReorderedH0", "XX", "BatchedInput", "BatchedOut")
BATCHES = ([3, 0, 2], [1], [4, 4, 4, 4, 1, 1, 2, 5, 1], [2, 2], [0, 1], [3, 0, 2])
I, O = 5, 4  # noqa: E741


def numbers(*shape: int, seed: int = 0) -> Array:
    rng = np.random.default_rng([seed, *shape])
    return (rng.uniform(-1, 1, shape) / np.sqrt(shape[0])).astype(np.float32)


def feeds(lengths: Sequence[int], *states: str, levels: int = 1) -> dict[str, Batch]:
    words = Ragged.from_lengths(numbers(sum(lengths), I, seed=len(lengths)) * 2, lengths)
    outer = (np.array([0, 1, len(lengths)]),) if levels == 2 else ()
    made: dict[str, Batch] = {"x": Ragged(words.data, words.offsets, outer)}
    return made | {name: numbers(len(lengths), O, seed=k) for k, name in enumerate(states)}


def projected(graph: PaddleGraph, x: Variable, width: int, gates: int, seed: int) -> Variable:
    weight, bias = numbers(width, gates * O, seed=seed), numbers(gates * O, seed=seed + 1)
    product = graph.op("mul", {"X": x, "Y": graph.parameter(weight)}, x_num_col_dims=1)
    return graph.op("elementwise_add", {"X": product, "Y": graph.parameter(bias)}, axis=1)


def gru(
    graph: PaddleGraph,
    x: Variable,
    width: int = I,
    *,
    seed: int = 0,
    h0: Variable | None = None,
    bias: Variable | None = None,
    **attributes: Any,
) -> Variable:
    inputs = {
        "Input": projected(graph, x, width, 3, seed),
        "Weight": graph.parameter(numbers(O, 3 * O, seed=seed + 2)),
        "Bias": bias if bias is not None else graph.parameter(numbers(1, 3 * O, seed=seed + 3)),
    }
    inputs |= {"H0": h0} if h0 is not None else {}
    return graph.op("gru", inputs, GRU, **attributes)[0]


def lstm(graph: PaddleGraph, v: Mapping[str, Variable], **attributes: Any) -> Any:
    inputs = {
        "Input": projected(graph, v["x"], I, 4, 0),
        "Weight": graph.parameter(numbers(O, 4 * O)),
        "Bias": graph.parameter(numbers(1, (7 if attributes["use_peepholes"] else 4) * O)),
    }
    inputs |= {slot.upper(): v[slot] for slot in ("h0", "c0") if slot in v}
    return graph.op("lstm", inputs, LSTM, **attributes)[:2]


def both(graph: PaddleGraph, x: Variable, width: int, seed: int, h0: Any = None) -> Variable:
    sides = [
        gru(graph, x, width, seed=seed + 10 * side, h0=h0, is_reverse=bool(side)) for side in (0, 1)
    ]
    return graph.op("concat", {"X": sides}, axis=1)


def saved(folder: Path, like: Mapping[str, Batch], build: Any) -> SavedModel:
    graph = PaddleGraph()
    made = build(graph, {name: graph.feed_like(name, value) for name, value in like.items()})
    return graph.save(folder, list(made) if isinstance(made, list | tuple) else [made])


class Plugged(SavedModel):
    """A saved model as Paddle's executor runs it with ours inside."""

    def __init__(self, plain: SavedModel, **options: Any) -> None:
        vars(self).update(vars(plain))
        self._program = optimize(plain._program, plain._scope, **options)
        self.optimized = self._program

    @property
    def types(self) -> list[str]:
        found = [op.type for op in self._program.global_block().ops]
        return [each for each in found if each not in ("feed", "fetch", "scale")]


class Predictor:
    """The files of a saved model in paddle.inference, all its fusions on, with ours inside."""

    def __init__(self, folder: Path, onednn: bool = False, config: Any = None) -> None:
        named = str(folder / "model.pdmodel"), str(folder / "model.pdiparams")
        config = config or paddle.inference.Config(*named)
        config.disable_glog_info()
        if onednn:
            config.enable_mkldnn()
        self.own = paddle.inference.create_predictor(optimize(config))

    def run(self, given: Mapping[str, Batch], own: Any = None) -> list[Batch]:
        own = own or self.own
        for name, value in given.items():
            handle = own.get_input_handle(name)
            handle.copy_from_cpu(value.data if isinstance(value, Ragged) else value)
            if isinstance(value, Ragged):
                handle.set_lod(value.lod)
        own.run()
        outputs = [own.get_output_handle(name) for name in own.get_output_names()]
        return [
            Ragged.from_lod(each.copy_to_cpu(), each.lod()) if each.lod() else each.copy_to_cpu()
            for each in outputs
        ]


def check(plain: SavedModel, ours: Any, given: Sequence[Mapping[str, Batch]]) -> None:
    for each in given:
        got, expected = ours.run(each), plain.run(each)
        found = differences(dict(zip(map(str, range(9)), got, strict=False)), expected)
        assert not found, found


MODELS: dict[str, tuple[Any, tuple[str, ...], list[str]]] = {
    "gru": (lambda g, v: gru(g, v["x"]), (), ["py_func"]),
    "gru-reverse-origin": (
        lambda g, v: gru(g, v["x"], origin_mode=True, is_reverse=True),
        (),
        ["py_func"],
    ),
    "gru-H0": (lambda g, v: gru(g, v["x"], h0=v["h0"]), ("h0",), ["py_func"]),
    "pair-H0": (lambda g, v: both(g, v["x"], I, 0, v["h0"]), ("h0",), ["py_func"]),
    "stack": (lambda g, v: both(g, both(g, v["x"], I, 0), 2 * O, 5), (), ["py_func"]),
    "relu between": (
        lambda g, v: both(g, g.op("relu", {"X": both(g, v["x"], I, 0)}), 2 * O, 5),
        (),
        ["py_func", "relu", "py_func"],
    ),
    "lstm": (lambda g, v: lstm(g, v, use_peepholes=False)[0], (), ["py_func"]),
    "lstm-cells": (
        lambda g, v: lstm(g, v, use_peepholes=True, is_reverse=True),
        ("h0", "c0"),
        ["py_func"],
    ),
}


def shared_bias(graph: PaddleGraph, v: Mapping[str, Variable]) -> list[Variable]:
    bias = graph.parameter(numbers(1, 3 * O, seed=77))
    return [gru(graph, v["x"], seed=seed, bias=bias) for seed in (0, 20)]


def fusion_gru(graph: PaddleGraph, v: Mapping[str, Variable]) -> Variable:
    slots = {
        "X": v["x"],
        "WeightX": graph.parameter(numbers(I, 3 * O)),
        "WeightH": graph.parameter(numbers(O, 3 * O)),
        "Bias": graph.parameter(numbers(1, 3 * O)),
        "H0": v["h0"],
    }
    return graph.op("fusion_gru", slots, FUSION_GRU, is_reverse=True)[0]


MODELS["shared bias"] = (shared_bias, (), ["py_func", "py_func"])
MODELS["fused already"] = (fusion_gru, ("h0",), ["py_func"])


@pytest.mark.parametrize("name", MODELS)
def test_a_program_gives_what_it_gave(name: str, tmp_path: Path) -> None:
    """Batches of changing size through one program, sentences of length zero among them."""
    build, states, types = MODELS[name]
    plain = saved(tmp_path, feeds(BATCHES[0], *states), build)
    before = plain._program.desc.serialize_to_string()
    ours = Plugged(plain)
    assert plain._program.desc.serialize_to_string() == before
    assert ours.types == types and not ours.optimized.refusals
    assert len(ours.optimized.replaced) == types.count("py_func")
    check(plain, ours, [feeds(lengths, *states) for lengths in BATCHES])


@pytest.mark.parametrize("onednn", [False, True], ids=["native", "onednn"])
@pytest.mark.parametrize("name", MODELS)
def test_paddle_inference_gives_what_the_unfused_program_gives(
    name: str, onednn: bool, tmp_path: Path
) -> None:
    """Paddle's own fusion drops H0, adds into a shared bias, keeps H0 of an old batch."""
    build, states, _ = MODELS[name]
    plain = saved(tmp_path, feeds(BATCHES[0], *states), build)
    check(plain, Predictor(tmp_path, onednn), [feeds(lengths, *states) for lengths in BATCHES])


MODES = ("GRU", "LSTM", "SimpleRNN")


@pytest.mark.parametrize(
    "mode, layers, way", list(itertools.product(MODES, (1, 2), ("forward", "bidirect")))
)
def test_programs_built_with_paddle_nn(mode: str, layers: int, way: str) -> None:
    main, startup, scope = paddle.static.Program(), paddle.static.Program(), paddle.static.Scope()
    with paddle.static.program_guard(main, startup):
        x = paddle.static.data("x", [-1, -1, I])
        lengths = paddle.static.data("lengths", [-1], "int32")
        made = getattr(paddle.nn, mode)(I, O, num_layers=layers, direction=way, dropout=0.5)
        y, state = made(x, sequence_length=lengths)
        fetches = [y, *(state if mode == "LSTM" else [state])]
    plain = main.clone(for_test=True)
    executor = paddle.static.Executor(paddle.CPUPlace())
    with paddle.static.scope_guard(scope):
        executor.run(startup)
        ours = optimize(plain, fetch_list=fetches)
        assert "rnn" not in [op.type for op in ours.global_block().ops]
        for sizes in ([3, 1, 2], [4], [1, 2, 2, 2, 5, 1]):
            feed = {"x": numbers(len(sizes), 5, I), "lengths": np.array(sizes, np.int32)}
            got, expected = (executor.run(p, feed, fetch_list=fetches) for p in (ours, plain))
            for one, other in zip(got, expected, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
        if layers == 2:  # dropout between the layers still works there
            with pytest.raises(UnsupportedError, match="dropout saved in training mode"):
                optimize(main, fetch_list=fetches)


def test_later_changes_of_parameters_are_followed(tmp_path: Path) -> None:
    plain = saved(tmp_path, feeds([2, 1]), MODELS["stack"][0])
    ours, given = Plugged(plain), feeds([3, 0, 2])
    held = [v.name for v in ours.optimized.list_vars() if v.persistable and v.name.startswith("w_")]
    assert len(held) == 16
    for name in held:
        before = ours.run(given)[0].data
        found = plain._scope.find_var(name).get_tensor()
        found.set(np.array(found) + 0.25, paddle.CPUPlace())
        check(plain, ours, [given])
        assert np.abs(ours.run(given)[0].data - before).max() > 1e-4


def test_plugins_that_are_disabled_leave_a_program_to_paddle() -> None:
    graph = PaddleGraph()
    gru(graph, graph.feed("x", [-1, I], lod_level=1))
    with plugins_disabled():
        made = optimize(graph._main, graph._scope)
    assert [op.type for op in made.global_block().ops] == [
        op.type for op in graph._main.global_block().ops
    ]
    assert made.replaced == () and "plug-ins are disabled" in str(made.refusals[0])


def test_what_is_not_computed_any_more_cannot_be_fetched(tmp_path: Path) -> None:
    """Although the scope still holds what the plain program left there."""
    plain = saved(tmp_path, feeds([2, 1]), MODELS["gru"][0])
    given = {k: tensor(v) for k, v in feeds([2, 1]).items()}
    (inside,) = (
        n for op in plain._program.global_block().ops if op.type == "mul" for n in op.output("Out")
    )
    with paddle.static.scope_guard(plain._scope):
        assert plain._executor.run(plain._program, given, fetch_list=[inside], return_numpy=False)
        ours = optimize(plain._program, plain._scope)
        with pytest.raises(Exception, match=inside):
            plain._executor.run(ours, given, fetch_list=[inside])
        kept = optimize(plain._program, plain._scope, fetch_list=[inside])
        got = plain._executor.run(kept, given, fetch_list=[inside], return_numpy=False)
    assert batch(got[0]).data.shape == (3, 3 * O)


@pytest.mark.parametrize("function", ["relu", "identity"])
def test_what_onednn_lacks_stays_with_paddle(
    function: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def build(graph: PaddleGraph, v: Mapping[str, Variable]) -> list[Variable]:
        return [gru(graph, v["x"], activation=function), gru(graph, v["x"], seed=20)]

    plain = saved(tmp_path, feeds([2, 1]), build)
    with caplog.at_level(logging.INFO, "onernn"):
        ours = Plugged(plain, backend="onednn")
    assert ours.types == ["mul", "elementwise_add", "gru", "py_func"]
    (refusal,) = ours.optimized.refusals
    assert function in refusal.reason and refusal.reason in caplog.text
    assert ours.optimized.replaced[0] in caplog.text
    check(plain, ours, [feeds([3, 0, 2])])
    for backend in ("auto", "reference"):
        other = Plugged(plain, backend=backend)
        assert other.types == ["py_func", "py_func"]
        check(plain, other, [feeds([3, 0, 2])])


def test_half_precision_computes_nearly_the_same(tmp_path: Path) -> None:
    plain = saved(tmp_path, feeds([2, 1]), MODELS["stack"][0])
    got, expected = (m.run(feeds([3, 0, 2]))[0].data for m in (Plugged(plain, dtype="bf16"), plain))
    assert 0 < np.abs(got - expected).max() <= 2e-2


def test_many_threads_share_what_is_packed(tmp_path: Path) -> None:
    plain = saved(tmp_path, feeds([2, 1], "h0"), MODELS["gru-H0"][0])
    ours = Predictor(tmp_path)
    given = [feeds(lengths, "h0") for lengths in BATCHES]
    expected = [plain.run(each) for each in given]

    # Paddle 3.3.1 frees the parameters of all clones with the first one that goes.
    clones = [ours.own.clone() for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        for results in pool.map(lambda own: [ours.run(e, own) for e in given * 3], clones):
            for got, want in zip(results, expected * 3, strict=True):
                assert not differences({"y": got[0]}, want)


def test_errors_tell_the_part_and_the_cause(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain = saved(tmp_path, feeds([2, 1], "h0"), MODELS["gru-H0"][0])
    ours, given = Plugged(plain), feeds([2, 1], "h0")
    with pytest.raises(Exception, match="state h: expected"):
        ours.run({**given, "h0": numbers(3, O)})
    assert "(mul+elementwise_add+gru): ShapeError" in caplog.text
    check(plain, ours, [given])  # and it goes on


def test_gradients_of_a_program_are_refused() -> None:
    graph = PaddleGraph()
    x = graph.feed("x", [-1, I], lod_level=1)
    y = gru(graph, x)
    executor = paddle.static.Executor(paddle.CPUPlace())
    ours = optimize(graph._main, graph._scope, fetch_list=[y])
    with paddle.static.scope_guard(graph._scope), paddle.static.program_guard(ours):
        block = ours.global_block()
        block.var("x").stop_gradient = block.var(y.name).stop_gradient = False
        (grad,) = paddle.static.gradients([block.var(y.name)], [block.var("x")])
        with pytest.raises(Exception, match="no gradients: a program is optimized for inference"):
            executor.run(ours, {"x": tensor(feeds([2, 1])["x"])}, fetch_list=[grad])


def test_what_cannot_be_optimized_is_told(tmp_path: Path) -> None:
    graph = PaddleGraph()
    x = graph.feed("x", [-1, I], lod_level=1)
    with pytest.raises(
        UnsupportedError, match="no recurrent operator can be replaced: it holds none"
    ):
        optimize(graph._main, graph._scope)
    gru(graph, x)
    with pytest.raises(UnsupportedError, match="hold no numbers; run the startup program"):
        optimize(graph._main, paddle.static.Scope())
    optimized = optimize(graph._main, graph._scope)
    with pytest.raises(UnsupportedError, match="it holds none"):
        optimize(optimized, graph._scope)
    with pytest.raises(TypeError, match="expected a paddle.static.Program"):
        optimize("model.pdmodel")
    with pytest.raises(TypeError, match="unexpected keyword argument 'precision'"):
        optimize(graph._main, graph._scope, precision="f32")
    saved(tmp_path, feeds([2, 1]), MODELS["gru"][0])
    config = paddle.inference.Config(
        str(tmp_path / "model.pdmodel"), str(tmp_path / "model.pdiparams")
    )
    optimize(config)
    with pytest.raises(UnsupportedError, match="names no files"):
        optimize(config)


@pytest.mark.parametrize("separate", [False, True], ids=["combined", "one file a parameter"])
def test_the_folder_of_a_config_is_a_model(tmp_path: Path, separate: bool) -> None:
    given = feeds([3, 1, 4])
    plain, folder = saved(tmp_path, given, MODELS["gru"][0]), tmp_path
    if separate:
        folder = tmp_path / "separate"
        folder.mkdir()
        (folder / "__model__").write_bytes((tmp_path / "model.pdmodel").read_bytes())
        program = plain._program
        held = [
            each
            for each in program.list_vars()
            if each.persistable and "feed" not in each.name and "fetch" not in each.name
        ]
        with paddle.static.scope_guard(plain._scope):
            executor = paddle.static.Executor(paddle.CPUPlace())
            paddle.static.save_vars(executor, str(folder), main_program=program, vars=held)
    ours = Predictor(folder, config=paddle.inference.Config(str(folder)))
    check(plain, ours, [given, feeds([2, 5])])
