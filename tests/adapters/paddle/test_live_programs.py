"""Parts of Paddle's programs that become ours: which, why not, and with what numbers; no Paddle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.arrays import uniform
from support.paddle_operators import op
from support.paddle_programs import execute, serialized, types, variables

from onernn import (
    CompiledModel,
    MissingDependencyError,
    ModelFormatError,
    Ragged,
    UnsupportedError,
    load,
)
from onernn.adapters.paddle.custom_operators import arguments
from onernn.adapters.paddle.partition import (
    RECURRENT,
    LayerKind,
    LivePart,
    LiveProgram,
    Options,
    ReplaceablePart,
    call_compiled,
    call_key,
    call_python,
    restore_operators,
)
from onernn.adapters.paddle.read import Operator, find, parse_program, read_program
from onernn.backend.process import usable_cpus
from onernn.ir.arrays import Array
from onernn.verification.comparing import TOLERANCES, compare
from onernn.verification.recording import read_arrays, read_inputs, read_outputs

REFERENCE = Options(backend="reference")
I, O = 3, 2  # noqa: E741
SIZES = {"wx": (I, 3 * O), "b": (3 * O,), "wh": (O, 3 * O), "bh": (1, 3 * O), "h": (1, O)}


def parameters() -> dict[str, Array]:
    """wx, b, wh, bh, and those of a second GRU, wx2, ..., on which the first one's output goes."""
    rng = np.random.default_rng(5)
    shapes = {**SIZES, **{f"{k}2": (O, 3 * O) if k == "wx" else v for k, v in SIZES.items()}}
    del shapes["h"], shapes["h2"]
    return {name: (rng.uniform(-1, 1, s) / 2).astype(np.float32) for name, s in shapes.items()}


def gru(
    x: str = "x", y: str = "y", n: str = "", more: str = "", **attributes: bool
) -> list[Operator]:
    """mul, elementwise_add, gru: from ``x`` to ``y``, with the parameters of suffix ``n``."""
    return [
        op(f"mul X={x} Y=wx{n} -> Out=m{y}", x_num_col_dims=1),
        op(f"elementwise_add X=m{y} Y=b{n} -> Out=a{y}", axis=1),
        op(
            f"gru Input=a{y} Weight=wh{n} Bias=bh{n} H0={more} -> Hidden={y} BatchGate=g{y}",
            **attributes,
        ),
    ]


STACK = [*gru("x", "s"), *gru("s", "y", "2")]
"""Two layers."""


def fetched(operators: Sequence[Operator], *names: str, feeds: str = "x") -> list[Operator]:
    return [
        *(op(f"feed X=feed -> Out={name}", col=k) for k, name in enumerate(feeds.split())),
        *operators,
        *(op(f"fetch X={name} -> Out=fetch", col=k) for k, name in enumerate(names)),
    ]


def found(
    operators: Sequence[Operator], wanted: Sequence[str] = (), **more: Any
) -> tuple[LiveProgram, list[ReplaceablePart], list[str]]:
    """(the program, its parts, reasons that others are none)."""
    held = parameters()
    live = LiveProgram(serialized(operators, held, **more), lambda _: held, wanted)
    parts, refusals = live.parts()
    return live, parts, [str(refusal) for refusal in refusals]


def rewritten(live: LiveProgram, parts: Sequence[ReplaceablePart]) -> bytes:
    return live.rewrite({part: call_python(part, k, 99) for k, part in enumerate(parts)})


def words(lengths: Sequence[int], seed: int = 0) -> Ragged:
    data = uniform(sum(lengths), I, seed=seed)
    return Ragged.from_lengths(data, lengths)


# Recordings of Paddle 2.6.2: what stays with Paddle, and why.
STAYS = {
    "fc_gru_act_sigmoid_identity": "no GRU with functions sigmoid, identity",
    "fc_gru_act_sigmoid_relu": "no GRU with functions sigmoid, relu",
    "fc_gru_act_tanh_tanh": "no GRU with functions tanh, tanh",
    "relu_candidate": "no GRU with functions sigmoid, relu",
    "tanh_gate": "no GRU with functions tanh, tanh",
}


def check_recording(folder: Path) -> None:
    files, held, model = find(folder), read_program(folder).parameters, load(folder)
    live = LiveProgram(files.model.read_bytes(), lambda _: held, file=files.model)
    parts, refusals = live.parts()
    ours: dict[int, LivePart] = {}
    reasons = [str(refusal) for refusal in refusals]
    for number, part in enumerate(parts):
        made = LivePart(part, Options(backend="onednn"))
        try:
            made.session(part.depths, live.arrays(part.parameters))
            ours[number] = made
        except UnsupportedError as error:
            reasons.append(str(error))
    calls = {made.part: call_python(made.part, number, 99) for number, made in ours.items()}
    program = live.rewrite(calls)
    left = RECURRENT & {*types(program)}
    if folder.name in STAYS:
        assert left and STAYS[folder.name] in "; ".join(reasons)
    else:
        assert not left and not reasons
    assert types(program).count("py_func") == len(ours)
    arrays = read_arrays(folder / "io.npz")
    expected = read_outputs(arrays, model.outputs)
    got = execute(program, held, read_inputs(arrays, model.inputs), ours)
    for value, batch in zip(model.outputs, got, strict=True):
        if value.name in expected:
            verdict = compare(value.name, batch, expected[value.name], TOLERANCES["f32"])
            assert verdict.passed, verdict.reason
    assert expected


def recordings(folder: Path) -> list[Path]:
    """Those of ProgramDesc: PIR has no operator that calls Python. Paddle alone runs loops."""
    found = sorted(f for f in folder.iterdir() if f.is_dir() and not [*f.glob("*.json")])
    return [f for f in found if not f.name.startswith("loop_")]


@pytest.mark.parametrize("name", ["loop_appended_2", "loop_bidirectional_2", "loop_cases_2"])
def test_loops_and_branches_stay_with_paddle(name: str, data: Path) -> None:
    files = find(data / "paddle" / name)
    held = read_program(files.model).parameters
    live = LiveProgram(files.model.read_bytes(), lambda _: held, file=files.model)
    assert live.parts() == ([], [])


def test_rewritten_programs_give_what_paddle_gave(data: Path) -> None:
    for folder in recordings(data / "paddle"):
        check_recording(folder)


def test_rewritten_models_give_what_paddle_gave(shared_models: Path) -> None:
    for folder in recordings(shared_models / "paddle"):
        check_recording(folder)


def test_a_projection_and_its_gru_become_one_operator() -> None:
    live, (part,), reasons = found(fetched(gru(), "y"))
    assert not reasons and part.label == "y (mul+elementwise_add+gru)"
    assert (part.data, part.outputs, part.depths) == (("x",), ("y",), (1,))
    assert part.parameters == ("wx", "b", "wh", "bh")
    calls = {
        "py_func": (call_python(part, 7, 8), {"forward_callable_id": 7, "backward_callable_id": 8}),
        "onernn_part": (
            call_compiled(part, 7, ["x"], fixed=False),
            {"number": 7, "data": 1, "fixed": False},
        ),
    }
    for kind, (operators, attributes) in calls.items():
        whole = parse_program(live.rewrite({part: operators}), Path(), lambda _: {})
        made, *resets = (each for each in whole.operators if each.type not in ("feed", "fetch"))
        assert made.type == kind and made.attributes.items() >= attributes.items()
        assert [*made.inputs.values()] == [("x", "wx", "b", "wh", "bh")]
        assert [*made.outputs.values()] == [("y",)]
        # A custom operator cannot set a LoD.
        found_resets = [(each.type, each.inputs, each.outputs) for each in resets]
        reset = "lod_reset", {"X": ("y",), "Y": ("x",)}, {"Out": ("y",)}
        assert found_resets == [reset] * (kind == "onernn_part")


def test_variables_that_nobody_computes_any_more_are_gone_and_the_others_stay() -> None:
    operators = [*fetched(gru(), "y"), op("relu X=x -> Out=other")]
    live, parts, _ = found(operators)
    before = variables(serialized(operators, parameters()))
    assert before - variables(rewritten(live, parts)) == {"my", "ay", "gy"}
    assert variables(rewritten(live, [])) == before


def test_a_program_gets_its_operators_back() -> None:
    """Those that made constants of parameters, too, once where two parts read them."""
    fixed = op("assign X=wx -> Out=made")
    second = gru("x", "t", is_reverse=True)
    operators = [fixed, *gru("x", "s"), *second, op("relu X=t -> Out=z")]
    for at in (1, 4):
        slots = {**operators[at].inputs, "Y": ("made",)}
        operators[at] = replace(operators[at], inputs=slots)
    plain = fetched(operators, "s", "z")
    live, parts, _ = found(plain)
    before = serialized(plain, parameters())
    for calls in (
        {part: call_python(part, k, 99) for k, part in enumerate(parts)},
        {part: call_compiled(part, k, ["x"], fixed=False) for k, part in enumerate(parts)},
    ):
        originals = {call_key(ours[0]): live.original(part) for part, ours in calls.items()}
        data = live.rewrite(calls)
        assert len(parts) == 2 and not {"gru", "assign"} & {*types(data)}
        back = restore_operators(data, originals)
        assert back is not None and sorted(types(back)) == sorted(types(before))
        assert variables(back) == variables(before)
        x, held = words([2, 0, 1]), parameters()
        want, got = (execute(program, held, {"x": x}, {}) for program in (before, back))
        for one, other in zip(got, want, strict=True):
            assert np.array_equal(one.data, other.data)
    assert restore_operators(before, originals) is None


def test_what_is_wanted_is_still_there() -> None:
    # By a fetch operator, by name, by an operator that nobody understands.
    for more, wanted in (
        (fetched(STACK, "y", "s"), ()),
        (fetched(STACK, "y"), ("s",)),
        (fetched([*STACK, op("conv2d Input=s -> Output=z")], "y", "z"), ()),
    ):
        live, parts, reasons = found(more, wanted=wanted)
        assert not reasons
        assert [part.outputs for part in parts] == [("s",), ("y",)]
        assert {"s", "y"} <= variables(rewritten(live, parts))


def test_without_fetches_what_nobody_reads_is_wanted() -> None:
    _, (part,), _ = found(STACK)
    assert part.outputs == ("y",)  # and not BatchGate, which ours does not give


def test_behind_an_operator_that_nobody_understands_ours_go_on() -> None:
    operators = fetched([op("deformable_conv Input=x -> Output=c"), *gru("c")], "y")
    live, (part,), reasons = found(operators, ragged=("c",))
    assert part.data == ("c",) and part.depths == (1,) and not reasons
    assert types(rewritten(live, [part])) == ["deformable_conv", "py_func"]


REFUSED = {
    "variable 'y' is assigned more than once": [
        *gru(),
        op("relu X=y -> Out=y"),
    ],
    "'gy' is read, output BatchGate is not computed": [
        *gru(),
        op("relu X=gy -> Out=z"),
    ],
    "input Input: expected a LoD": gru("dense"),
    "Weight 'made' is computed at run time": [
        op("relu X=x -> Out=made"),
        *gru()[:2],
        op("gru Input=ay Weight=made -> Hidden=y"),
    ],
    "attribute activation='swish'": [
        *gru()[:2],
        op("gru Input=ay Weight=wh -> Hidden=y", activation="swish"),
    ],
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_cannot_become_ours_stays_with_the_reason(reason: str) -> None:
    operators = fetched(REFUSED[reason], "y", "z", feeds="x dense")
    live, parts, reasons = found([each for each in operators if each.inputs != {"X": ("z",)}])
    assert not parts and len(reasons) == 1 and reason in reasons[0]
    assert "gru" in types(rewritten(live, parts))


def test_recurrent_operators_of_inner_blocks_stay() -> None:
    loop = op("while X=x,wh -> Out=z", sub_block=1)
    inner = [op("gru Input=x Weight=wh -> Hidden=z")]
    _, parts, reasons = found(fetched([*gru(), loop], "y", "z"), inner=inner)
    assert [part.outputs for part in parts] == [("y",)]
    (reason,) = reasons
    assert reason.startswith("gru: it is in an inner block")


def test_what_an_inner_block_reads_is_still_there() -> None:
    loop = op("while ->", sub_block=1)
    inner = [op("relu X=s -> Out=z")]
    _, parts, _ = found(fetched([*STACK, loop], "y"), inner=inner)
    assert [part.outputs for part in parts] == [("s",), ("y",)]


def test_what_the_program_assigns_is_no_constant() -> None:
    step = op("scale X=wh -> Out=wh", scale=0.5)
    _, parts, reasons = found(fetched([*gru(), step], "y"))
    assert not parts and len(reasons) == 1
    assert "assigns its parameter 'wh', as in training; take a clone(for_test=True)" in reasons[0]


def test_operators_whose_order_cannot_be_changed_stay() -> None:
    """A state that is kept from run to run: the second direction starts from the new one."""
    keep = op("relu X=x -> Out=kept")
    first = gru("x", "s", more="kept")
    second = gru("x", "t", more="kept", is_reverse=True)
    joined = op("concat X=s,t -> Out=y", axis=1)
    between = fetched([*first, keep, *second, joined], "y")
    _, parts, (reason,) = found(between, persistable=("kept",))
    assert not parts
    assert "'kept' is assigned before all of its operators have run" in reason
    behind = fetched([*first, *second, joined, keep], "y")
    _, (part,), _ = found(behind, persistable=("kept",))
    assert part.data == ("x", "kept")
    early = op("relu X=x -> Out=d")
    both = [*gru("x", "s"), early, *gru("x", "t", is_reverse=True)]
    both.append(op("concat X=s,t -> Out=y", axis=1))
    _, (part,), _ = found(fetched(both, "y", "d"))  # nothing between them is in the way
    assert len(part.operators) == 7


def test_a_wanted_variable_that_there_is_not_is_told() -> None:
    with pytest.raises(UnsupportedError, match=r"fetch_list: .*\['nope'\]"):
        found(gru(), wanted=("nope",))


def test_bytes_that_are_no_program_are_refused() -> None:
    with pytest.raises(ModelFormatError, match="program: not a Paddle"):
        LiveProgram(b"nonsense", lambda _: {})


def live_part(*, constant: bool = False) -> tuple[LivePart, list[Array]]:
    live, (part,), _ = found(fetched(gru(more="h0"), "y", feeds="x h0"))
    return LivePart(part, REFERENCE, constant=constant), live.arrays(part.parameters)


def test_weights_are_packed_once_and_again_when_a_number_changes() -> None:
    ours, held = live_part()
    first = ours.session((1, 0), held)
    assert ours.session((1, 0), [array.copy() for array in held]) is first
    x, h0 = words([2, 0, 1]), np.zeros((3, O), np.float32)
    (before,) = ours.run([x, h0], held)
    for at in range(len(held)):
        changed = [array.copy() for array in held]
        changed[at].flat[-1] += 1
        (after,) = ours.run([x, h0], changed)
        assert not np.array_equal(after.data, before.data)
    changed = [array.copy() for array in held]
    changed[0][:] = np.nan
    with pytest.raises(UnsupportedError, match="expected finite numbers"):
        ours.run([x, h0], changed)
    assert np.array_equal(ours.run([x, h0], held)[0].data, before.data)


@pytest.mark.usefixtures("built")
def test_a_part_is_compiled_for_the_types_and_levels_of_its_data(tmp_path: Path) -> None:
    live, (part,), _ = found(fetched(gru(more="h0"), "y", feeds="x h0"))
    ours, held = LivePart(part, Options()), live.arrays(part.parameters)
    x, h0 = words([2, 0, 1]), np.zeros((3, O), np.float32)
    deep = Ragged(x.data, x.offsets, (np.array([0, 1, 3]),))
    for data in ([x, h0], [deep, h0]):
        (tmp_path / "part").write_bytes(ours.compile(data, held))
        (got,) = (
            CompiledModel(tmp_path / "part").run(dict(zip(part.data, data, strict=True))).values()
        )
        (want,) = ours.run(data, held)
        assert np.array_equal(got.data, want.data) and got.lod == want.lod
    assert ours.lods(ours.session((1, 0), held)) == ("x",)
    assert LivePart(part, REFERENCE).lods(LivePart(part, REFERENCE).session((1, 0), held)) is None


@pytest.mark.skipif(find_spec("paddle") is not None, reason="paddle is installed")
def test_without_paddle_the_plug_in_says_what_to_install() -> None:
    from onernn.adapters.paddle import optimize

    with pytest.raises(MissingDependencyError, match=r"pip install 'onernn\[paddle\]'"):
        optimize(object())


@pytest.mark.usefixtures("built")
def test_operators_have_the_threads_that_options_ask_for_or_else_openmps_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kind = LayerKind("LSTM", I, O, 1, 1)
    monkeypatch.delenv("ONERNN_TEAM", raising=False)
    for wish, threads, expected in (("1", None, 1), ("2", None, 2), ("2", 1, 1), ("1", 64, 64)):
        monkeypatch.setenv("OMP_NUM_THREADS", wish)
        given = arguments(kind, time_major=True, is_test=True, chosen=Options(threads=threads))
        assert given[-1] == min(expected, usable_cpus())
