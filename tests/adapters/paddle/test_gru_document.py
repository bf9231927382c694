"""Paddle's design document of its oneDNN GRU, line by line: see design/0017.

The oracle goes sentence by sentence, with the document's two formulas and a matrix a gate, in
float64; it finds each number of WeightH by its address, and knows nothing of the package.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from support.paddle_operators import op, program

from onernn import Graph, Ragged, Session, UnsupportedError
from onernn.adapters.paddle.lower import lower
from onernn.adapters.paddle.read import Program, Variable
from onernn.fuse_passes import fuse
from onernn.ir.errors import ShapeError

IC, OC = 4, 3
OFFSETS = np.array([0, 4, 4, 5, 8])  # sentences of 4, 0, 1 and 3 words
FUNCTIONS = {
    "sigmoid": lambda a: 1 / (1 + np.exp(-a)),
    "tanh": np.tanh,
    "relu": lambda a: np.maximum(a, 0),
    "identity": lambda a: a,
}
Arrays = dict[str, np.ndarray]


def arrays() -> Arrays:
    rng = np.random.default_rng(11)
    shapes = {
        "x": (OFFSETS[-1], IC), "h0": (len(OFFSETS) - 1, OC), "wx": (IC, 3 * OC),
        "wh": (OC, 3 * OC), "bias": (1, 3 * OC), "fc_bias": (3 * OC,),
    }  # fmt: skip
    return {name: rng.uniform(-1, 1, shape).astype(np.float32) for name, shape in shapes.items()}


def programmed(kind: str, given: Arrays, **attributes: Any) -> Program:
    """fc and gru, mul and gru, or fusion_gru, with those of h0, bias and fc_bias that are given."""
    feeds = tuple(name for name in ("x", "h0") if name in given)
    declared = {"h0": Variable("h0", 7, "float32", (None, OC), 0, False)} if "h0" in given else {}
    more = f"Bias={'bias' if 'bias' in given else ''} H0={''.join(declared)} -> Hidden=y"
    if kind == "fusion_gru":
        made = [op(f"fusion_gru X=x WeightX=wx WeightH=wh {more}", **attributes)]
    else:
        made = [op("mul X=x Y=wx -> Out=product")]
        if kind == "fc":
            made.append(op("elementwise_add X=product Y=fc_bias -> Out=projected", axis=1))
        (last,) = made[-1].writes
        made.append(op(f"gru Input={last} Weight=wh {more}", **attributes))
    weights = {k: v for k, v in given.items() if k not in ("x", "h0")}
    return program(*made, feeds=feeds, parameters=weights, **declared)


def documented(
    given: Arrays,
    *,
    origin_mode: bool = False,
    is_reverse: bool = False,
    gate_activation: str = "sigmoid",
    activation: str = "tanh",
) -> np.ndarray:
    """The hidden state of each word, (Words, OC)."""
    wide = {name: array.astype(np.float64) for name, array in given.items()}
    gate, candidate = FUNCTIONS[gate_activation], FUNCTIONS[activation]
    wx_u, wx_r, wx_c = np.split(wide["wx"], 3, axis=1)
    memory, split = wide["wh"].reshape(-1), 2 * OC * OC
    wh_u, wh_r = np.split(memory[:split].reshape(OC, 2 * OC), 2, axis=1)
    wh_c = memory[split:].reshape(OC, OC)
    bias = wide.get("bias", np.zeros(3 * OC)).reshape(-1) + wide.get("fc_bias", np.zeros(3 * OC))
    b_u, b_r, b_c = np.split(bias, 3)
    y = np.zeros((len(wide["x"]), OC))
    for n, (begin, end) in enumerate(zip(OFFSETS[:-1], OFFSETS[1:], strict=True)):
        h = wide["h0"][n] if "h0" in wide else np.zeros(OC)
        for word in range(begin, end)[:: -1 if is_reverse else 1]:
            x = wide["x"][word]
            u = gate(x @ wx_u + h @ wh_u + b_u)
            r = gate(x @ wx_r + h @ wh_r + b_r)
            c = candidate(x @ wx_c + (r * h) @ wh_c + b_c)
            h = u * h + (1 - u) * c if origin_mode else (1 - u) * h + u * c
            y[word] = h
    return y


def ran(graph: Graph, given: Arrays, backend: str = "auto", **options: Any) -> Ragged:
    feed: dict[str, Any] = {"x": Ragged(given["x"], OFFSETS)}
    if "h0" in given:
        feed["h0"] = given["h0"]
    return Session(graph, backend=backend, **options).run(feed)["y"]


def kinds(graph: Graph) -> list[str]:
    return [node.op for node in fuse(graph).model.nodes]


KINDS = ["mul", "fc", "fusion_gru"]
MORE = [(), ("bias",), ("h0",), ("bias", "h0")]


def chosen(kind: str, more: tuple[str, ...] = ("bias", "h0")) -> Arrays:
    every = arrays()
    return {k: every[k] for k in ("x", "wx", "wh", *["fc_bias"] * (kind == "fc"), *more)}


@pytest.mark.parametrize("backend", ["auto", "onednn", "reference"])
@pytest.mark.parametrize("origin_mode, is_reverse", [*product((False, True), repeat=2)])
@pytest.mark.parametrize("more", MORE, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_each_form_computes_the_documents_formulas(
    kind: str, more: tuple[str, ...], origin_mode: bool, is_reverse: bool, backend: str
) -> None:
    """Ragged sentences, one without words among them, in the caller's order."""
    given, told = chosen(kind, more), {"origin_mode": origin_mode, "is_reverse": is_reverse}
    graph = lower(programmed(kind, given, **told))
    y = ran(graph, given, backend)
    assert_allclose(y.data, documented(given, **told), rtol=0, atol=2e-6)
    assert y.data.shape == (OFFSETS[-1], OC) and y.lod == [OFFSETS.tolist()]
    assert [each for each in kinds(graph) if each != "Unsqueeze"] == ["Rnn"]


def test_the_oracle_tells_modes_directions_and_gates_apart() -> None:
    """What the comparison stands on."""
    given = chosen("fc")
    right = documented(given)
    for told in ({"origin_mode": True}, {"is_reverse": True}):
        assert np.abs(documented(given, **told) - right).max() > 1e-2
    for name, order in product(("wx", "wh", "bias", "h0"), (slice(None, None, -1),)):
        changed = {**given, name: given[name][..., order]}
        assert np.abs(documented(changed) - right).max() > 1e-2


def test_the_default_is_the_formula_that_onednn_lacks() -> None:
    """origin_mode False, where 1 - u stays of the old state."""
    given = chosen("fusion_gru")
    silent = ran(lower(programmed("fusion_gru", given)), given)
    assert_allclose(silent.data, documented(given), rtol=0, atol=2e-6)


@pytest.mark.parametrize("origin_mode", [False, True])
@pytest.mark.parametrize("gate", FUNCTIONS)
@pytest.mark.parametrize("candidate", FUNCTIONS)
def test_any_activation_computes_its_formula(gate: str, candidate: str, origin_mode: bool) -> None:
    given = chosen("fusion_gru")
    for name in ("wx", "wh"):
        given[name] *= np.float32(0.3)  # functions without bounds stay small
    told = {"gate_activation": gate, "activation": candidate, "origin_mode": origin_mode}
    want = documented(given, **told)
    y = ran(lower(programmed("fusion_gru", given, **told)), given)
    assert_allclose(y.data, want, rtol=0, atol=1e-6 + 1e-5 * np.abs(want).max())


@pytest.mark.parametrize(
    "name, shape",
    [
        ("wx", (IC, 3 * OC + 1)),
        ("wh", (OC, 2 * OC)),
        ("wh", (3 * OC, OC)),
        ("bias", (1, 3 * OC - 1)),
        ("bias", (3, OC)),
    ],
)
def test_parameters_of_another_shape_are_refused(name: str, shape: tuple[int, ...]) -> None:
    given = chosen("fusion_gru")
    given[name] = np.ones(shape, np.float32)
    with pytest.raises((UnsupportedError, ShapeError)):
        ran(lower(programmed("fusion_gru", given)), given)


@pytest.mark.parametrize("shape", [(len(OFFSETS), OC), (len(OFFSETS) - 1, OC + 1)])
def test_an_initial_state_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    given = {**chosen("fusion_gru"), "h0": np.ones(shape, np.float32)}
    with pytest.raises(ShapeError):
        ran(lower(programmed("fusion_gru", given)), given)


def test_words_without_sentences_are_refused() -> None:
    """[Words, Channels] alone do not tell where a sentence begins."""
    given = chosen("fusion_gru", ())
    graph = lower(programmed("fusion_gru", given))
    with pytest.raises((UnsupportedError, ShapeError)):
        Session(graph).run({"x": given["x"]})


@pytest.mark.parametrize("dtype", ["bf16", "u8"])
def test_a_bias_stays_float_whatever_the_weights_are_stored_in(dtype: str) -> None:
    """300.3 beside products of -300: as bf16 or in steps of u8 the bias would be 300."""
    given = chosen("fusion_gru", ("bias",))
    for name in ("x", "wx", "wh", "bias"):
        given[name][:] = 0
    given["x"][:, 0], given["wx"][0, 2 * OC :] = 1, -300
    given["bias"][0, 2 * OC :] = np.float32(300.3)
    y = ran(lower(programmed("fusion_gru", given)), given, "onednn", dtype=dtype)
    right = documented(given)
    assert np.abs(right).min() > 0.1
    assert_allclose(y.data, right, rtol=0, atol=2e-2)
