"""examples/weights_only: networks from arrays alone, beside their formulas in float64.

g2p-en 2.1.0 itself gave the same phonemes for 1,000 words, chars2vec 0.1.7 in Keras 3.15.1 the same
vectors to 5e-7; packages are not needed here.
"""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from onernn import Activation

RNG = np.random.default_rng(5)


def example(repo: Path, name: str) -> Any:
    spec = spec_from_file_location(name, repo / "examples" / "weights_only" / f"{name}.py")
    assert spec and spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def made(*shape: int) -> np.ndarray:
    return RNG.uniform(-1, 1, shape).astype(np.float32) / np.sqrt(shape[-1])


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def test_g2p_pronounces_as_its_formula(repo: Path, tmp_path: Path) -> None:
    g2p, wide, units = example(repo, "g2p"), 8, 12
    arrays = {"enc_emb": 9 * made(29, wide), "dec_emb": 9 * made(74, wide)}
    for part in ("enc", "dec"):
        arrays |= {f"{part}_w_ih": 3 * made(3 * units, wide), f"{part}_b_ih": made(3 * units)}
        arrays |= {f"{part}_w_hh": 3 * made(3 * units, units), f"{part}_b_hh": made(3 * units)}
    arrays |= {"fc_w": 9 * made(74, units), "fc_b": made(74)}
    np.savez(tmp_path / "g2p.npz", **arrays)
    exact = {name: array.astype(float) for name, array in arrays.items()}

    def step(part: str, x: Any, h: Any) -> Any:
        of_x = exact[f"{part}_w_ih"] @ x + exact[f"{part}_b_ih"]
        of_h = exact[f"{part}_w_hh"] @ h + exact[f"{part}_b_hh"]
        (r, z), n = sigmoid(of_x + of_h)[: 2 * units].reshape(2, -1), slice(2 * units, None)
        return (1 - z) * np.tanh(of_x[n] + r * of_h[n]) + z * h

    def formula(word: str) -> list[str]:
        h, phoneme, found = np.zeros(units), 2, list[str]()
        for k in [*("abcdefghijklmnopqrstuvwxyz".find(letter) + 3 for letter in word), 2]:
            h = step("enc", exact["enc_emb"][k], h)
        for _ in range(20):
            h = step("dec", exact["dec_emb"][phoneme], h)
            phoneme = int((exact["fc_w"] @ h + exact["fc_b"]).argmax())
            if phoneme == 3:
                break
            found.append(g2p.PHONEMES[phoneme])
        return found

    words = ["speech", "a", "recurrent", "network", "onernn"]
    got = g2p.pronounced(words, *g2p.networks(tmp_path / "g2p.npz"))
    assert got == [formula(word) for word in words]
    assert len({tuple(each) for each in got}) > 2


@pytest.mark.parametrize("gates", ["sigmoid", "hardsigmoid"])
def test_chars2vec_is_its_formula(gates: str, repo: Path, tmp_path: Path) -> None:
    chars, units = example(repo, "chars"), 5
    arrays = []
    with h5py.File(tmp_path / "weights.h5", "w") as file:
        for k, wide in ((1, 59), (2, units)):
            layer = {"kernel": 3 * made(wide, 4 * units), "bias": made(4 * units)}
            layer["recurrent_kernel"] = made(units, 4 * units)
            arrays.append(layer)
            for name, array in layer.items():
                file[f"lstm_{k}/lstm_{k}/{name}:0"] = array

    def gate(x: Any) -> Any:
        return sigmoid(x) if gates == "sigmoid" else np.clip(0.2 * x + 0.5, 0, 1)

    def layer(x: Any, w: dict[str, Any]) -> Any:
        h = c = np.zeros(units)
        for row in x:
            sums = row @ w["kernel"] + h @ w["recurrent_kernel"].astype(float) + w["bias"]
            i, f, g, o = np.split(sums, 4)
            c = gate(f) * c + gate(i) * np.tanh(g)
            h = gate(o) * np.tanh(c)
            yield h

    words = ["Word", "of", "naïve", "letters"]
    numbers = () if gates == "sigmoid" else (0.2, 0.5)
    session = chars.network(tmp_path / "weights.h5", Activation(gates, *numbers))
    got = chars.vectors(words, session)
    for word, vector in zip(words, got, strict=True):
        places = [chars.LETTERS.find(letter) for letter in word.lower()]
        x = np.zeros((7, 59))
        for t, place in enumerate(places, 7 - len(word)):
            x[t, place] = place >= 0
        *_, last = layer(list(layer(x, arrays[0])), arrays[1])
        np.testing.assert_allclose(vector, last, rtol=0, atol=1e-6)
