"""Ours inside of Paddle's executor and paddle.inference, beside Paddle's own operators."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
from tests.frameworks.paddle_graphs import (
    Batch,
    SavedModel,
    Variable,
    batch,
    differences,
    numbers,
    tensor,
)
from tests.frameworks.paddle_nets import MODES, Built, all_close, config_of, predict
from tests.frameworks.record_paddle import Builder
from tests.frameworks.record_paddle_layers import lstm

from onernn import Ragged, UnsupportedError, plugins_disabled
from onernn.adapters.paddle import optimize, restore
from onernn.adapters.paddle.partition import LivePart

BATCHES = ([3, 0, 2], [1], [4, 4, 4, 4, 1, 1, 2, 5, 1], [2, 2], [0, 1], [3, 0, 2])
I, O = 4, 5  # noqa: E741
"""Of `Builder`."""


def feeds(lengths: Sequence[int], *states: str) -> dict[str, Batch]:
    words = Ragged.from_lengths(numbers(sum(lengths), I, seed=len(lengths)), lengths)
    return {"x": words} | {name: numbers(len(lengths), O, seed=k) for k, name in enumerate(states)}


def cell_states(b: Builder, *names: str) -> dict[str, Variable]:
    return {name.upper(): b.feed(name, numbers(1, O)) for name in names}


def both(b: Builder, x: Variable, width: int = I, **more: Any) -> Variable:
    sides = [b.fc_gru(x, width=width, is_reverse=back, **more) for back in (False, True)]
    return b.op("concat", X=sides, axis=1)


def saved(folder: Path, build: Callable[[Builder], Any]) -> SavedModel:
    builder = Builder(3)
    made = build(builder)
    return builder.graph.save(folder, list(made) if isinstance(made, list | tuple) else [made])


class Plugged(SavedModel):
    """A saved model as Paddle's executor runs it with ours inside."""

    def __init__(self, plain: SavedModel, **options: Any) -> None:
        vars(self).update(vars(plain))
        self._program = optimize(plain._program, plain._scope, **options)
        self.optimized = self._program

    @property
    def types(self) -> list[str]:
        found = [op.type for op in self._program.global_block().ops]
        return [each for each in found if each not in ("feed", "fetch", "scale", "lod_reset")]


class Predictor:
    """The files of a saved model in paddle.inference, all its fusions on, with ours inside."""

    def __init__(self, folder: Path, onednn: bool = False, config: Any = None) -> None:
        config = config or config_of(folder)
        if onednn:
            config.enable_mkldnn()
        self.own = paddle.inference.create_predictor(optimize(config))

    def run(self, given: Mapping[str, Batch], own: Any = None) -> list[Batch]:
        return predict(own or self.own, given)


def check(plain: SavedModel, ours: Any, given: Sequence[Mapping[str, Batch]]) -> None:
    for each in given:
        got, expected = ours.run(each), plain.run(each)
        found = differences(dict(zip(map(str, range(9)), got, strict=False)), expected)
        assert not found, found


def shared_bias(b: Builder) -> list[Variable]:
    bias = b.parameter(1, 3 * O)
    return [b.fc_gru(bias=bias) for _ in range(2)]


def fusion_gru(b: Builder) -> Variable:
    rows = {"WeightX": I, "WeightH": O, "Bias": 1}
    slots = {slot: b.parameter(count, 3 * O) for slot, count in rows.items()}
    return b.op("fusion_gru", X=b.x, **slots, **cell_states(b, "h0"), is_reverse=True)


def stack(b: Builder, function: str = "") -> Variable:
    lower = both(b, b.x)
    return both(b, b.op(function, X=lower) if function else lower, 2 * O)


OURS = ["onernn_part"]
MODELS: dict[str, tuple[Callable[[Builder], Any], tuple[str, ...], list[str]]] = {
    "gru": (lambda b: b.fc_gru(), (), OURS),
    "gru-reverse-origin": (lambda b: b.fc_gru(origin_mode=True, is_reverse=True), (), OURS),
    "gru-H0": (lambda b: b.fc_gru(state=cell_states(b, "h0")["H0"]), ("h0",), OURS),
    "pair-H0": (lambda b: both(b, b.x, state=cell_states(b, "h0")["H0"]), ("h0",), OURS),
    "stack": (stack, (), OURS),
    "relu between": (lambda b: stack(b, "relu"), (), ["onernn_part", "relu", "onernn_part"]),
    "lstm": (lambda b: lstm(b, b.fc(b.x, I, 4 * O), O, use_peepholes=False)[0], (), OURS),
    "lstm-cells": (
        lambda b: lstm(b, b.fc(b.x, I, 4 * O), O, is_reverse=True, **cell_states(b, "h0", "c0")),
        ("h0", "c0"),
        OURS,
    ),
    "shared bias": (shared_bias, (), ["onernn_part", "onernn_part"]),
    "fused already": (fusion_gru, ("h0",), OURS),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_program_gives_what_it_gave(name: str, tmp_path: Path) -> None:
    """Batches of changing size through one program, sentences of length zero among them."""
    build, states, types = MODELS[name]
    plain = saved(tmp_path, build)
    before = plain._program.desc.serialize_to_string()
    ours = Plugged(plain)
    assert plain._program.desc.serialize_to_string() == before
    assert ours.types == types and not ours.optimized.refusals
    assert len(ours.optimized.replaced) == types.count("onernn_part")
    check(plain, ours, [feeds(lengths, *states) for lengths in BATCHES])


@pytest.mark.parametrize("onednn", [False, True], ids=["native", "onednn"])
@pytest.mark.parametrize("name", MODELS)
def test_paddle_inference_gives_what_the_unfused_program_gives(
    name: str, onednn: bool, tmp_path: Path
) -> None:
    """Paddle's own fusion drops H0, adds into a shared bias, keeps H0 of an old batch."""
    build, states, _ = MODELS[name]
    plain = saved(tmp_path, build)
    check(plain, Predictor(tmp_path, onednn), [feeds(lengths, *states) for lengths in BATCHES])


@pytest.mark.parametrize(
    "mode, layers, way", list(itertools.product(MODES, (1, 2), ("forward", "bidirect")))
)
def test_programs_built_with_paddle_nn(mode: str, layers: int, way: str) -> None:
    def build(_: Any, x: Any, lengths: Any) -> list[Any]:
        made = getattr(paddle.nn, mode)(5, O, num_layers=layers, direction=way, dropout=0.5)
        return paddle.utils.flatten(made(x, sequence_length=lengths))

    built = Built(build)
    plain = built.main.clone(for_test=True)
    ours = optimize(plain, built.scope, fetch_list=built.wanted)
    assert "rnn" not in [op.type for op in ours.global_block().ops]
    for sizes in ([3, 1, 2], [4], [1, 2, 2, 2, 5, 1]):
        feed = {"x": numbers(len(sizes), 5, 5), "lengths": np.array(sizes, np.int32)}
        all_close(*(built.run(program, **feed) for program in (ours, plain)))
    if layers == 2:  # dropout between the layers still works there
        with pytest.raises(UnsupportedError, match="dropout"):
            optimize(built.main, built.scope, fetch_list=built.wanted)


def test_later_changes_of_parameters_are_followed(tmp_path: Path) -> None:
    plain = saved(tmp_path, MODELS["stack"][0])
    ours, given = Plugged(plain), feeds([3, 0, 2])
    held = [v.name for v in ours.optimized.list_vars() if v.persistable and v.name.startswith("w_")]
    assert len(held) == 16
    for name in held:
        before = ours.run(given)[0].data
        found = plain._scope.find_var(name).get_tensor()
        found.set(np.array(found) + 0.25, paddle.CPUPlace())
        check(plain, ours, [given])
        assert np.abs(ours.run(given)[0].data - before).max() > 1e-4


def test_parameters_of_a_frozen_program_are_those_of_the_first_call(tmp_path: Path) -> None:
    plain = saved(tmp_path, MODELS["stack"][0])
    ours, given = Plugged(plain, frozen=True), feeds([3, 0, 2])
    check(plain, ours, [given, given])
    (before,) = ours.run(given)
    for each in ours.optimized.list_vars():
        if each.persistable and each.name.startswith("w_"):
            tensor_of = plain._scope.find_var(each.name).get_tensor()
            tensor_of.set(np.array(tensor_of) + 0.25, paddle.CPUPlace())
    (after,) = ours.run(given)
    assert np.array_equal(after.data, before.data)
    assert np.abs(plain.run(given)[0].data - before.data).max() > 1e-4
    with pytest.raises(UnsupportedError, match="frozen"):
        optimize(paddle.nn.Linear(2, 2), frozen=True)


def test_plugins_that_are_disabled_leave_a_program_to_paddle() -> None:
    builder = Builder(3)
    builder.fc_gru()
    graph = builder.graph
    with plugins_disabled():
        made = optimize(graph._main, graph._scope)
    assert [op.type for op in made.global_block().ops] == [
        op.type for op in graph._main.global_block().ops
    ]
    assert made.replaced == () and "plug-ins are disabled" in str(made.refusals[0])


def test_what_is_not_computed_any_more_cannot_be_fetched(tmp_path: Path) -> None:
    """Although the scope still holds what the plain program left there."""
    plain = saved(tmp_path, MODELS["gru"][0])
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
    plain = saved(tmp_path, lambda b: [b.fc_gru(activation=function), b.fc_gru()])
    with caplog.at_level(logging.INFO, "onernn"):
        ours = Plugged(plain, backend="onednn")
    assert ours.types == ["mul", "elementwise_add", "gru", "py_func"]
    (refusal,) = ours.optimized.refusals
    assert function in refusal.reason and refusal.reason in caplog.text
    assert ours.optimized.replaced[0] in caplog.text
    check(plain, ours, [feeds([3, 0, 2])])
    for backend, call in (("auto", "onernn_part"), ("reference", "py_func")):
        other = Plugged(plain, backend=backend)
        assert other.types == [call, call]
        check(plain, other, [feeds([3, 0, 2])])


def test_half_precision_computes_nearly_the_same(tmp_path: Path) -> None:
    plain = saved(tmp_path, MODELS["stack"][0])
    got, expected = (m.run(feeds([3, 0, 2]))[0].data for m in (Plugged(plain, dtype="bf16"), plain))
    assert 0 < np.abs(got - expected).max() <= 2e-2


def test_many_threads_share_what_is_packed(tmp_path: Path) -> None:
    plain = saved(tmp_path, MODELS["gru-H0"][0])
    ours = Predictor(tmp_path)
    given = [feeds(lengths, "h0") for lengths in BATCHES]
    expected = [plain.run(each) for each in given]

    # Paddle 3.3.1 frees the parameters of all clones with the first one that goes.
    clones = [ours.own.clone() for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        for results in pool.map(lambda own: [ours.run(e, own) for e in given * 3], clones):
            for got, want in zip(results, expected * 3, strict=True):
                assert not differences({"y": got[0]}, want)


def test_a_pool_gives_predictors_with_ours(tmp_path: Path) -> None:
    plain = saved(tmp_path, MODELS["gru"][0])
    ours = Predictor(tmp_path)
    pool = paddle.inference.PredictorPool(optimize(config_of(tmp_path)), 2)
    retrieve = getattr(pool, "retrieve", None) or pool.retrive  # as Paddle 2 spells it
    for at, lengths in enumerate(BATCHES[:2]):
        got = ours.run(feeds(lengths), retrieve(at))
        assert not differences({"y": got[0]}, plain.run(feeds(lengths)))


def test_only_the_first_call_of_a_kind_enters_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = saved(tmp_path, MODELS["gru-H0"][0])
    ours, served = Plugged(plain), Predictor(tmp_path)
    flat = [feeds(lengths, "h0") for lengths in BATCHES]
    words = flat[0]["x"]
    deep = {**flat[0], "x": Ragged(words.data, words.offsets, (np.array([0, 2, 3]),))}
    for given in (flat, [deep]):
        expected = [ours.run(each)[0] for each in given]
        with monkeypatch.context() as patch:
            patch.delattr(LivePart, "run")
            for each, want in zip(given, expected, strict=True):
                (got,) = ours.run(each)
                assert got.lod == want.lod and np.array_equal(got.data, want.data)
    assert len(expected[0].lod) == 2
    check(plain, served, flat)
    monkeypatch.delattr(LivePart, "run")
    check(plain, served, flat)


def test_programs_of_the_same_names_keep_their_numbers_apart(tmp_path: Path) -> None:
    models = []
    for name in ("gru", "gru-reverse-origin"):
        (tmp_path / name).mkdir()
        plain = saved(tmp_path / name, MODELS[name][0])
        models.append((plain, Plugged(plain), Predictor(tmp_path / name)))
    for lengths in BATCHES:
        for plain, ours, served in models:
            check(plain, ours, [feeds(lengths)])
            check(plain, served, [feeds(lengths)])


WRONG = {
    "must end at 5, the number of steps, got 4": [[0, 2, 4]],
    "must end at 5, the number of steps, got 9": [[0, 2, 9]],
    "must not decrease": [[0, 3, 2, 5]],
    "expected a LoD": [],
    "at least one": [[]],
}


@pytest.mark.parametrize("reason", WRONG)
def test_a_lod_that_does_not_fit_is_told(reason: str, tmp_path: Path) -> None:
    """Paddle's predictor reads and writes beyond its memory then."""
    plain = saved(tmp_path, MODELS["gru"][0])
    ours, given = Predictor(tmp_path), feeds([2, 3])
    check(plain, ours, [given])
    handle = ours.own.get_input_handle("x")
    handle.copy_from_cpu(given["x"].data)
    handle.set_lod(WRONG[reason])
    with pytest.raises(Exception, match=reason):
        ours.own.run()
    check(plain, ours, [given])


def test_batches_without_a_word_give_none(tmp_path: Path) -> None:
    plain = saved(tmp_path, MODELS["stack"][0])
    for ours in (Plugged(plain), Predictor(tmp_path)):
        for lengths in ([0], [2, 1], [0, 0]):
            (got,) = ours.run(feeds(lengths))
            assert got.data.shape == (sum(lengths), 2 * O)
            assert got.lod == feeds(lengths)["x"].lod


def test_errors_tell_the_part_and_the_cause(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain = saved(tmp_path, MODELS["gru-H0"][0])
    ours, given = Plugged(plain), feeds([2, 1], "h0")
    with pytest.raises(Exception, match="state h: expected"):
        ours.run({**given, "h0": numbers(3, O)})
    assert "(mul+elementwise_add+gru): ShapeError" in caplog.text
    check(plain, ours, [given])  # and it goes on


def test_gradients_of_a_program_are_refused() -> None:
    builder = Builder(3)
    y, graph = builder.fc_gru(), builder.graph
    executor = paddle.static.Executor(paddle.CPUPlace())
    ours = optimize(graph._main, graph._scope, fetch_list=[y])
    with paddle.static.scope_guard(graph._scope), paddle.static.program_guard(ours):
        block = ours.global_block()
        block.var("x").stop_gradient = block.var(y.name).stop_gradient = False
        (grad,) = paddle.static.gradients([block.var(y.name)], [block.var("x")])
        with pytest.raises(Exception, match="no gradients: "):
            executor.run(ours, {"x": tensor(feeds([2, 1])["x"])}, fetch_list=[grad])


def test_what_cannot_be_optimized_is_told(tmp_path: Path) -> None:
    builder = Builder(3)
    graph = builder.graph
    with pytest.raises(UnsupportedError, match="there is none"):
        optimize(graph._main, graph._scope)
    builder.fc_gru()
    with pytest.raises(UnsupportedError, match=r"parameters \["):
        optimize(graph._main, paddle.static.Scope())
    optimized = optimize(graph._main, graph._scope)
    with pytest.raises(UnsupportedError, match="there is none"):
        optimize(optimized, graph._scope)
    with pytest.raises(TypeError, match="expected a paddle.static.Program"):
        optimize("model.pdmodel")
    with pytest.raises(TypeError, match="unexpected keyword argument 'precision'"):
        optimize(graph._main, graph._scope, precision="f32")
    saved(tmp_path, MODELS["gru"][0])
    config = config_of(tmp_path)
    config.set_model_buffer(b"", 0, b"", 0)
    with pytest.raises(UnsupportedError, match="names no files"):
        optimize(config)


@pytest.mark.parametrize("separate", [False, True], ids=["combined", "one file a parameter"])
def test_the_folder_of_a_config_is_a_model(tmp_path: Path, separate: bool) -> None:
    given = feeds([3, 1, 4])
    plain, folder = saved(tmp_path, MODELS["gru"][0]), tmp_path
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
    config = paddle.inference.Config(str(folder))
    optimize(config)
    ours = Predictor(folder, config=config)  # optimizes it again
    check(plain, ours, [given, feeds([2, 5])])
    assert restore(config) is config
    named = config.model_dir() if separate else config.prog_file()
    assert named == str(folder if separate else folder / "model.pdmodel")
