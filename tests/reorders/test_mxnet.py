"""MXNet's parameter vector and gates <-> the pivot: every number by its address."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from onernn import ShapeError
from onernn.reorders import mxnet

# Where oneDNN's gates stand among MXNet's; the bias row u' of a GRU is h2h_bias of n.
GATES = {"rnn_relu": "h", "rnn_tanh": "h", "lstm": "ifgo", "gru": "rzn"}
PIVOT = {"rnn_relu": "h", "rnn_tanh": "h", "lstm": "ifgo", "gru": "zrn"}
STACKS = [
    mxnet.Stack(mode, hidden, layers, sides, projection)
    for mode in GATES
    for hidden, layers, sides, projection in (
        (1, 1, 1, None),
        (3, 2, 2, None),
        (2, 3, 1, None),
        *(((3, 2, 2, 2), (2, 1, 1, 1)) if mode == "lstm" else ()),
    )
]
INPUT = 4


def numbered(stack: mxnet.Stack) -> np.ndarray:
    return np.arange(1, stack.elements(INPUT) + 1, dtype=np.float32)


@pytest.mark.parametrize("stack", STACKS, ids=str)
def test_each_weight_is_where_the_operators_documentation_puts_it(stack: mxnet.Stack) -> None:
    flat = numbered(stack)
    layers = mxnet.weights(mxnet.split(flat, stack), stack)
    names, hidden, width = GATES[stack.mode], stack.hidden, stack.recurrent
    rows, at = len(names) * hidden, 0
    for layer, d in itertools.product(range(stack.layers), range(stack.directions)):
        inputs = width * stack.directions if layer else INPUT
        for kind, columns in (("layer", inputs), ("iter", width)):
            block = flat[at : at + rows * columns].reshape(len(names), hidden, columns)
            at += rows * columns
            got = getattr(layers[layer], kind)[0, d]
            for g, name in enumerate(PIVOT[stack.mode]):
                assert_array_equal(got[:, g], block[names.index(name)].T)
        if stack.projection:
            block = flat[at : at + width * hidden].reshape(width, hidden)
            at += width * hidden
            assert_array_equal(layers[layer].projection[0, d], block.T)
    for layer, d in itertools.product(range(stack.layers), range(stack.directions)):
        of_x, of_h = flat[at : at + 2 * rows].reshape(2, len(names), hidden)
        at += 2 * rows
        got = layers[layer].bias[0, d]
        for g, name in enumerate(PIVOT[stack.mode]):
            k = names.index(name)
            apart = stack.mode == "gru" and name == "n"
            assert_array_equal(got[g], of_x[k] if apart else of_x[k] + of_h[k])
        if stack.mode == "gru":
            assert_array_equal(got[3], of_h[names.index("n")])
    assert at == flat.size


@pytest.mark.parametrize("stack", STACKS, ids=str)
def test_the_vector_its_parts_and_its_gates_are_the_same_numbers(stack: mxnet.Stack) -> None:
    flat = numbered(stack)
    named = mxnet.split(flat, stack)
    assert_array_equal(mxnet.join(named, stack), flat)
    if not stack.projection:
        gates = mxnet.split_gates(named, stack)
        assert_array_equal(mxnet.join(mxnet.join_gates(gates, stack.mode), stack), flat)


def test_a_vector_of_the_wrong_length_is_refused() -> None:
    stack = mxnet.Stack("lstm", 3, 1, 1)
    for wrong in (stack.elements(0), stack.elements(2) - 1, 0):
        with pytest.raises(ShapeError, match=f"parameters: .*, got {wrong} "):
            mxnet.split(np.zeros(wrong, np.float32), stack)
    with pytest.raises(ShapeError, match="expected a vector"):
        mxnet.split(np.zeros((2, 3), np.float32), stack)


@pytest.mark.parametrize("stack", STACKS, ids=str)
def test_sizes_are_integers_of_python_which_writers_take(stack: mxnet.Stack) -> None:
    size = stack.input_size(stack.elements(INPUT))
    assert (size, type(size)) == (INPUT, int)
