"""Files of Keras 3 beside Keras itself: random stacks of recurrent layers, and each layer alone.

The backend is JAX's, unless KERAS_BACKEND names another one.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("KERAS_BACKEND", "jax")
pytest.importorskip("keras")

import keras  # noqa: E402
from frameworks import keras_models as models  # noqa: E402

SEEDS = int(os.environ.get("ONERNN_KERAS_MODELS", 60))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_models_give_what_keras_gives(seed: int, tmp_path: Path) -> None:
    model, feeds = models.random_model(keras, seed)
    path = tmp_path / ("model.keras" if seed % 3 else "model.h5")
    model.save(path)
    models.compared(path, feeds, models.given(model, feeds))


MASKED = models.masked_calls(keras)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MASKED)
def test_masks_of_calls_with_several_tensors_are_those_of_keras(name: str, tmp_path: Path) -> None:
    model = models.filled(keras.Model(*MASKED[name]), 5)
    rng, feeds = np.random.default_rng(1), []
    for value in model.inputs:
        size = (4, *(each or 4 for each in value.shape[1:]))
        feeds.append(rng.normal(size=size).astype("float32"))
        if value.dtype == "int32":
            feeds[-1] = np.array([[1, 2, 0, 0], [1, 2, 3, 4], [0, 1, 0, 2], [3, 0, 0, 5]], "int32")
            feeds[-1] = feeds[-1][:: -1 if value.name == "other" else 1].copy()
    model.save(tmp_path / "model.keras")
    models.compared(tmp_path / "model.keras", feeds, models.given(model, feeds))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("suffix", ["keras", "h5"])
@pytest.mark.parametrize("name", models.LAYERS)
def test_each_layer_gives_what_keras_gives(name: str, suffix: str, tmp_path: Path) -> None:
    shape, layers = models.LAYERS[name]
    model = models.sequential(keras, shape, layers(keras.layers))
    path = tmp_path / f"model.{suffix}"
    model.save(path)
    rng = np.random.default_rng(0)
    feeds = [rng.normal(size=(3, *(size or 5 for size in shape))).astype("float32")]
    models.compared(path, feeds, models.given(model, feeds))


@pytest.mark.parametrize("name", models.ACTIVATIONS)
def test_each_activation_gives_what_keras_gives(name: str, tmp_path: Path) -> None:
    model: Any = models.sequential(keras, (4,), [keras.layers.Dense(5, activation=name)])
    model.save(tmp_path / "model.keras")
    feeds = [np.random.default_rng(0).normal(size=(9, 4)).astype("float32") * 3]
    models.compared(tmp_path / "model.keras", feeds, models.given(model, feeds))
