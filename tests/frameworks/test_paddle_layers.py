"""Models written with Paddle's own layers: the attributes that these leave on the operators."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.frameworks.paddle_graphs import SavedModel, differences, paddle

from onernn import Ragged, Session, load


@pytest.mark.parametrize("clip_extra", [True, False])
@pytest.mark.parametrize("sparse", [True, False])
def test_a_model_of_layers_gives_what_paddle_gives(
    clip_extra: bool, sparse: bool, tmp_path: Path
) -> None:
    static, functional = paddle.static, paddle.nn.functional
    main, startup = static.Program(), static.Program()
    main.random_seed = startup.random_seed = 3
    with static.program_guard(main, startup), paddle.utils.unique_name.guard():
        ids = static.data("ids", [-1, 1], "int64", lod_level=1)
        words = static.nn.embedding(ids, [9, 6], is_sparse=sparse, padding_idx=2)
        words = paddle.squeeze(words, [1])
        hidden = functional.relu(static.nn.fc(words, 8, activation="tanh"))
        hidden = functional.dropout(hidden, 0.4, training=False, mode="downscale_in_infer")
        hidden = functional.dropout(hidden, 0.4, training=False)
        pair = paddle.concat([hidden, functional.sigmoid(hidden * 2.0 - 0.5)], axis=1)
        turned = paddle.transpose(paddle.reshape(pair, [-1, 4, 4]), [0, 2, 1])
        flat = paddle.reshape(paddle.unsqueeze(turned, [1]), [0, 16])
        weight = static.create_parameter([5, 16], "float32")
        scores = paddle.matmul(flat, weight, transpose_y=True) + static.create_parameter(
            [5], "float32"
        )
        fetches = [
            pair,
            functional.softmax(scores),
            paddle.argmax(scores, axis=-1, dtype="int32"),
            paddle.argmax(scores, axis=-1, keepdim=True),
            paddle.argmax(scores),
        ]
    executor = static.Executor(paddle.CPUPlace())
    with static.scope_guard(static.Scope()):
        executor.run(startup)
        static.save_inference_model(
            str(tmp_path / "model"), [ids], fetches, executor, program=main, clip_extra=clip_extra
        )
    saved = SavedModel(tmp_path / "model")
    session = Session(load(tmp_path), backend="reference")
    for offsets in ([0, 2, 2, 5], [0, 1], [0, 7]):
        rows = np.random.default_rng(offsets).integers(0, 9, (offsets[-1], 1))
        feeds = {"ids": Ragged(rows, offsets)}
        assert not (found := differences(session.run(feeds), saved.run(feeds))), found
