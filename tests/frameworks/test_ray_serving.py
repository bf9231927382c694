"""The example behind Ray Serve: ragged requests and streams answer as a session alone does."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import pytest

REPO = Path(__file__).parents[2]
EXAMPLE = REPO / "examples" / "serving"
os.environ["PYTHONPATH"] = os.pathsep.join([str(EXAMPLE), os.environ.get("PYTHONPATH", "")])
os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
os.environ |= {"RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60"}  # of a busy machine
os.environ |= {"RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "60"}

ray = pytest.importorskip("ray")
serve = pytest.importorskip("ray.serve")

from onernn import Ragged, Session  # noqa: E402
from onernn.ir.graph import Graph, Node, Value  # noqa: E402

PORT = 8123


@pytest.fixture(scope="module")
def example() -> Iterator[Any]:
    sys.path.insert(0, str(EXAMPLE))
    ray.init(num_cpus=2, log_to_driver=False, object_store_memory=100 * 2**20)
    serve.start(http_options={"host": "127.0.0.1", "port": PORT})
    yield importlib.import_module("serving")
    serve.shutdown()
    ray.shutdown()


def asked(body: Any, route: str) -> Any:
    with urlopen(f"http://127.0.0.1:{PORT}{route}", json.dumps(body).encode(), 60) as answer:
        return json.load(answer)


def test_ragged_requests_are_answered_as_each_alone(example: Any) -> None:
    model = str(REPO / "examples" / "segmenter")
    serve.run(example.sentences({"model": model}), name="s", route_prefix="/sentences")
    rng = np.random.default_rng(0)
    sentences = [rng.integers(0, 26, count) for count in (1, 7, 30, 2, 64, 5, 5, 90)]
    bad = {"values": [1, 999]}
    bodies = [*({"values": each.tolist()} for each in sentences), bad]
    with ThreadPoolExecutor(9) as pool:
        *answers, refused = pool.map(lambda body: asked(body, "/sentences"), bodies)
    session = Session(model)
    (value,) = session.graph.inputs
    for sentence, answer in zip(sentences, answers, strict=True):
        one = Ragged(sentence.astype(value.dtype), [0, len(sentence)])
        for name, want in session.run({value.name: one}).items():
            np.testing.assert_allclose(answer[name], want.data, atol=1e-6)
    assert "error" in refused


def test_streams_go_on_by_their_ids(example: Any, tmp_path: Path) -> None:
    """A running sum stands for a layer: what comes back tells every frame before."""
    import onernn

    x, s = Value("x", "float32", (None, 2)), Value("s", "float32", (1, 2))
    nodes = (
        Node("Mul", ("x", "gain"), ("loud",)),
        Node("Add", ("loud", "s"), ("sN",)),
        Node("Identity", ("sN",), ("y",)),
    )
    outputs = (Value("y", "float32", (1, 2)), Value("sN", "float32", (1, 2)))
    path = tmp_path / "sum.onnx"
    onernn.convert(Graph("sum", (x, s, Value("gain", "float32", ())), outputs, nodes, {}), path)
    of = {"model": str(path), "state": "s", "next": "sN", "frame": "[1, 2]", "gain": "3"}
    made = example.streams(of)
    serve.run(made, name="t", route_prefix="/streams")

    def client(at: int) -> list[Any]:
        frames = [{"stream": f"c{at}", "frame": [at, step]} for step in range(5)]
        return [asked(frame, "/streams")["y"] for frame in frames]

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(client, range(8)))
    for at, found in enumerate(results):
        assert found == [[[3 * at * (k + 1), 3 * k * (k + 1) / 2]] for k in range(5)]
    assert asked({"stream": "c1", "end": True}, "/streams") == {}
    assert asked({"stream": "c1", "frame": [1, 1]}, "/streams")["y"] == [[3, 3]]
    assert "error" in asked({"stream": "c1", "frame": [1, 1, 1]}, "/streams")
    assert "error" in asked({"stream": "nobody", "end": True}, "/streams")
