"""An LSTM learns a rhyme letter by letter: training with onernn's arrays, the optimizer in NumPy.

python examples/train_lstm.py [--steps 300] [--dtype bf16]
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
import typer

from onernn import Cell, Ragged, RnnSpec, RnnWeights
from onernn.backend import Stack, open_backend

RHYME = """\
Twinkle, twinkle, little star,
How I wonder what you are!
Up above the world so high,
Like a diamond in the sky.
When the blazing sun is gone,
When he nothing shines upon,
Then you show your little light,
Till the sun is in the sky.
""".splitlines(keepends=True)
LETTERS = sorted(set("".join(RHYME)))
UNITS = 96
SPEC = RnnSpec(Cell.LSTM, len(LETTERS), UNITS)

Parameters = dict[str, np.ndarray]


def one_hot(text: str) -> np.ndarray:
    """(W, I)"""
    return np.eye(len(LETTERS), dtype=np.float32)[[LETTERS.index(letter) for letter in text]]


def new_parameters(rng: np.random.Generator) -> Parameters:
    """The LSTM's in oneDNN's layouts, gates i, f, c, o; and those of the layer that guesses."""
    shapes = {
        "layer": (1, 1, len(LETTERS), 4, UNITS),
        "iter": (1, 1, UNITS, 4, UNITS),
        "bias": (1, 1, 4, UNITS),
        "out": (UNITS, len(LETTERS)),
        "out_bias": (len(LETTERS),),
    }
    bound = 1 / np.sqrt(UNITS)
    made = {k: rng.uniform(-bound, bound, s).astype(np.float32) for k, s in shapes.items()}
    made["bias"][:, :, 1] += 1  # remember, to begin with
    return made


def prepared(parameters: Parameters, dtype: str) -> Stack:
    weights = RnnWeights(*(parameters[name] for name in ("layer", "iter", "bias")))
    return open_backend("onednn").prepare(SPEC, weights, dtype=dtype)


def loss_and_gradients(
    parameters: Parameters, x: Ragged, following: np.ndarray, dtype: str
) -> tuple[float, Parameters]:
    """The mean cross entropy of the letter that follows each letter, and its gradients."""
    layer = prepared(parameters, dtype)
    y, _, tape = layer.run_training(x)
    assert isinstance(y, Ragged)
    scores = y.data @ parameters["out"] + parameters["out_bias"]
    guesses = np.exp(scores - scores.max(axis=1, keepdims=True))
    guesses /= guesses.sum(axis=1, keepdims=True)
    loss = -np.log((guesses * following).sum(axis=1)).mean()
    dscores = (guesses - following) / len(following)
    (lstm,) = layer.backward(tape, y.with_data(dscores @ parameters["out"].T)).layers
    gradients = {"layer": lstm.layer, "iter": lstm.iter, "bias": lstm.bias}
    return float(loss), gradients | {"out": y.data.T @ dscores, "out_bias": dscores.sum(axis=0)}


class Adam:
    """Kingma and Ba 2015, algorithm 1."""

    def __init__(self, rate: float = 0.01, decay: float = 0.9, square_decay: float = 0.999) -> None:
        self._rate, self._decay, self._square_decay = rate, decay, square_decay
        self._moments: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        self._steps = 0

    def moved(self, parameters: Parameters, gradients: Parameters) -> Parameters:
        """The parameters after one more step."""
        self._steps += 1
        a, b = self._decay, self._square_decay
        found = {}
        for name, g in gradients.items():
            mean, square = self._moments.get(name, (np.zeros_like(g), np.zeros_like(g)))
            mean, square = a * mean + (1 - a) * g, b * square + (1 - b) * g * g
            self._moments[name] = mean, square
            scale = np.sqrt(square / (1 - b**self._steps)) + 1e-8
            found[name] = parameters[name] - self._rate * mean / (1 - a**self._steps) / scale
        return found


def sung(parameters: Parameters, start: str, dtype: str) -> str:
    """The line that begins so, one letter after the other, the state handed on."""
    layer, line = prepared(parameters, dtype), start
    y, state = layer.run(one_hot(start)[:, None])
    while not line.endswith("\n") and len(line) < 80:
        line += LETTERS[int((y[-1, 0] @ parameters["out"] + parameters["out_bias"]).argmax())]
        y, state = layer.run(one_hot(line[-1])[:, None], state)
    return line.rstrip()


def main(
    steps: Annotated[int, typer.Option(help="How often the weights change.", min=1)] = 200,
    dtype: Annotated[str, typer.Option(help="f32 or bf16.")] = "f32",
) -> None:
    """Prints the loss going down, then the rhyme from the first letters of its lines."""
    x = Ragged.from_list([one_hot(line[:-1]) for line in RHYME])
    following = one_hot("".join(line[1:] for line in RHYME))
    parameters, adam = new_parameters(np.random.default_rng(0)), Adam()
    for step in range(1, steps + 1):
        loss, gradients = loss_and_gradients(parameters, x, following, dtype)
        parameters = adam.moved(parameters, gradients)
        if step % 20 == 1 or step == steps:
            print(f"step {step:4}  loss {loss:.4f}")
    for line in RHYME:
        print(sung(parameters, line[:8], dtype))


if __name__ == "__main__":
    typer.run(main)
