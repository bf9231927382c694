"""Random GRU taggers: ours, fused and not, beside Paddle's plain operators.

ONERNN_GRAPHS sets the number of graphs; each is a seed, so that a red one can be run again.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.backends import BACKENDS
from tests.frameworks.paddle_graphs import Batch, SavedModel, differences
from tests.frameworks.paddle_taggers import Tagger

from onernn import Graph, Ragged, Session, fuse, load
from onernn.ir.graph import Value

GRAPHS = int(os.environ.get("ONERNN_GRAPHS", "60"))


def paddle_gives(saved: SavedModel, feeds: Mapping[str, Batch], without_empty: bool) -> list[Batch]:
    """Paddle's outputs under the LoD of x: its GRUs take one level, and fusion_gru goes wrong
    over sentences of length zero, which have no rows anyway."""
    x = feeds["x"]
    assert isinstance(x, Ragged)
    some = x.lengths > 0 if without_empty else np.ones(len(x), bool)
    given: dict[str, Batch] = {n: h[some] for n, h in feeds.items() if not isinstance(h, Ragged)}
    given["x"] = Ragged.from_lengths(x.data, x.lengths[some])
    found = saved.run(given)
    for value in found:
        assert not isinstance(value, Ragged) or value.lod == given["x"].lod
    return [x.with_data(v.data) if isinstance(v, Ragged) else v for v in found]


def unfused(model: Graph) -> Graph:
    """The same with every value as an output, so that no pass may touch a thing."""
    made = [Value(name) for node in model.nodes for name in node.outputs if name]
    known = {value.name for value in model.outputs}
    outputs = (*model.outputs, *(value for value in made if value.name not in known))
    return replace(model, outputs=outputs)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("seed", range(GRAPHS))
def test_a_random_tagger_gives_what_paddle_gives(seed: int, backend: str, tmp_path: Path) -> None:
    tagger = Tagger(seed)
    saved = tagger.graph.save(tmp_path, tagger.fetches)
    model = load(tmp_path)
    fired = Counter(applied.name for applied in fuse(model).applied)
    # What else fires depends on what the graph happens to repeat, drop, or put in a row.
    predicted = {name: fired[name] for name in ("linear_rnn", "bidirectional") if fired[name]}
    assert predicted == +tagger.fired
    plain = unfused(model)
    assert {applied.name for applied in fuse(plain).applied} <= {"common_values"}
    sessions = [Session(each, backend=backend) for each in (model, plain)]
    for kind in ("any", "equal", "one word", "any"):
        feeds = tagger.batch(model.inputs, kind)
        expected = paddle_gives(saved, feeds, tagger.has_fusion_gru)
        for session in sessions:
            got = session.run(feeds)
            outputs = {value.name: got[value.name] for value in model.outputs}
            assert not (found := differences(outputs, expected)), (kind, found)
