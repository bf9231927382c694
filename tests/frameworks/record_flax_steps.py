"""Steps of Flax's cells as jax2onnx writes them, with what JAX computes from frame to frame.

``PYTHONPATH=tests python -m tests.frameworks.record_flax_steps`` records them anew under
tests/data/steps; it needs jax, flax and jax2onnx.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen, nnx
from jax2onnx import to_onnx
from tests.frameworks.recording import record_frames

T, N, WIDTH, H = 5, 3, 3, 4
RNG = np.random.default_rng(0)


class Policy(linen.Module):
    """An agent whose state starts anew with each episode."""

    @linen.compact
    def __call__(self, h: Any, x: Any, reset: Any) -> Any:
        h = jnp.where(reset[:, None], jnp.zeros_like(h), h)
        h, y = linen.GRUCell(H)(h, linen.relu(linen.Dense(H)(x)))
        return h, linen.Dense(2)(y)


def filled(tree: Any) -> Any:
    """Returns parameters with random numbers: Flax's biases are zeros."""
    return jax.tree.map(lambda a: jnp.asarray(RNG.uniform(-0.7, 0.7, a.shape), a.dtype), tree)


def apply(module: linen.Module) -> Callable[..., Any]:
    """Returns the step (carry, x, ...) of a module with parameters of its own."""
    frame = [jnp.zeros((N, WIDTH)), *([jnp.zeros(N, bool)] if isinstance(module, Policy) else [])]
    h = jnp.zeros((N, H))
    carry = (h, h) if "LSTM" in type(module).__name__ else h
    variables = filled(module.init(jax.random.key(0), carry, *frame))
    return lambda *values: module.apply(variables, *values)


def live(cell: Any) -> Any:
    nnx.update(cell, filled(nnx.state(cell, nnx.Param)))
    return cell


CELLS: dict[str, Callable[..., Any]] = {
    "flax_gru": apply(linen.GRUCell(H)),
    "flax_mgu": apply(linen.MGUCell(H)),
    "flax_simple": apply(linen.SimpleCell(H)),
    "flax_lstm": apply(linen.LSTMCell(H)),
    "flax_optimized_lstm": apply(linen.OptimizedLSTMCell(H)),
    "flax_policy": apply(Policy()),
    "flax_nnx_gru": live(nnx.GRUCell(WIDTH, H, rngs=nnx.Rngs(0))),
    "flax_nnx_lstm": live(nnx.LSTMCell(WIDTH, H, rngs=nnx.Rngs(0))),
}


def record(name: str, cell: Callable[..., Any]) -> None:
    names = ["h", "c"] if "lstm" in name else ["h"]
    frames = {"x": RNG.uniform(-1, 1, (T, N, WIDTH)).astype(np.float32)}
    if "policy" in name:
        frames["reset"] = RNG.random((T, N)) < 0.3
    states = {each: RNG.uniform(-1, 1, (N, H)).astype(np.float32) for each in names}

    def step(*values: Any) -> tuple[Any, ...]:
        """Takes frames and states, returns the next states, then what else there is."""
        inputs = dict(zip([*frames, *states], values, strict=True))
        carry = (inputs["c"], inputs["h"]) if "c" in inputs else inputs["h"]
        carry, y = cell(carry, *(inputs[each] for each in frames))
        made = (carry[1], carry[0]) if "c" in inputs else (carry,)
        return (*made, y) if "policy" in name else made

    outputs = [f"{each}N" for each in names] + ["y"] * ("policy" in name)
    given = [*frames.values(), *states.values()]
    types = [
        jax.ShapeDtypeStruct(("N", *(a.shape[2:] if at < len(frames) else a.shape[1:])), a.dtype)
        for at, a in enumerate(given)
    ]
    model = to_onnx(
        step,
        types,
        model_name=name,
        opset=21,
        input_names=[*frames, *states],
        output_names=outputs,
    )
    record_frames(
        name,
        model.SerializeToString(),
        lambda **inputs: dict(
            zip(outputs, step(*(inputs[each] for each in [*frames, *states])), strict=True)
        ),
        frames,
        states,
    )


if __name__ == "__main__":
    for key, module in CELLS.items():
        record(key, module)
