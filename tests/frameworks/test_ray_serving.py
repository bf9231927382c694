"""The example behind Ray Serve: every request is answered as a session alone does, or refused."""

from __future__ import annotations

import importlib
import json
import math
import os
import socket
import sys
import unittest.mock
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
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

from onernn import OnernnError, Ragged, Session  # noqa: E402
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


def asked(body: Any, route: str) -> tuple[int, Any]:
    """The status of an answer, and its JSON, which knows no NaN."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        with urlopen(f"http://127.0.0.1:{PORT}{route}", data, 60) as answer:
            return answer.status, json.loads(answer.read(), parse_constant=pytest.fail)
    except HTTPError as error:
        return error.code, json.loads(error.read(), parse_constant=pytest.fail)


SEGMENTER = str(REPO / "examples" / "segmenter")
BAD_VALUES = [
    ({"values": [1, 999]}, 422, "values[1]: 999"),
    ({"values": [1, -1]}, 422, "values[1]: -1"),
    ({"values": [1.7, 2.9]}, 400, "values[0]: expected an integer, got 1.7"),
    ({"values": [1, "2"]}, 400, 'values[1]: expected an integer, got "2"'),
    ({"values": [1, True]}, 400, "values[1]: expected an integer, got true"),
    ({"values": [1, None]}, 400, "values[1]: expected an integer, got null"),
    ({"values": [1, [2]]}, 400, "values[1]: expected an integer, got [2]"),
    ({"values": [math.nan]}, 400, "values[0]: expected an integer, got NaN"),
    ({"values": [2**70]}, 400, "values[0]: 1180591620717411303424"),
    ({"values": 3}, 400, "values: expected a list"),
    ({"values": None}, 400, "values: expected a list"),
    ({}, 400, "'values' is missing"),
    ({"value": [1]}, 400, "unknown key 'value'; did you mean 'values'"),
    ([1, 2], 400, "expected a JSON object"),
    (b"{", 400, "not JSON"),
    (b"\xff", 400, "not JSON"),
    (b"", 400, "not JSON"),
    (b"[" * 100_000, 400, "not JSON"),
    ({"values": [1] * 5001}, 413, "values: more than 5,000 steps"),
    ({"values": [1] * 1_000_000}, 413, "more than 1,000,000 bytes"),
]


def test_a_bad_request_is_told_to_its_sender_and_fails_no_other(example: Any) -> None:
    serve.run(example.sentences({"model": SEGMENTER}), name="s", route_prefix="/sentences")
    rng = np.random.default_rng(0)
    sentences = [rng.integers(0, 26, count) for count in rng.integers(0, 40, 200)]
    bodies = [({"values": each.tolist()}, 200, "") for each in sentences]
    every = [*bodies, *BAD_VALUES, *BAD_VALUES]
    order = rng.permutation(len(every))
    with ThreadPoolExecutor(24) as pool:
        answers = dict(
            zip(order, pool.map(lambda at: asked(every[at][0], "/sentences"), order), strict=True)
        )
    session = Session(SEGMENTER)
    (value,) = session.inputs
    for at, (status, answer) in answers.items():
        _, wanted, text = every[at]
        assert status == wanted, answer
        if at < len(sentences):
            one = Ragged(sentences[at].astype(value.dtype), [0, len(sentences[at])])
            for name, want in session.run({value.name: one}).items():
                np.testing.assert_allclose(
                    np.reshape(answer[name], want.data.shape), want.data, atol=1e-6
                )
        else:
            assert text in answer["error"] and "node" not in answer["error"]


def test_a_batch_that_the_model_refuses_is_halved(example: Any) -> None:
    """What no check knows beforehand, here as the checks are passed by."""
    served = example.Sentences.func_or_class(SEGMENTER)
    good = [np.arange(n) for n in (3, 5, 2)]
    answers = served.answers([*good, np.array([1, 99]), *good, np.array([77])])
    assert [status for status, _ in answers] == [200, 200, 200, 422, 200, 200, 200, 422]
    assert answers[4:7] == answers[:3] == served.answers(good)
    assert "values: " in answers[3][1]["error"] and "index 99" in answers[3][1]["error"]


def summing(path: Path) -> dict[str, str]:
    """A running sum stands for a layer: what comes back tells every frame before."""
    import onernn

    x, s = Value("x", "float32", (None, 2)), Value("s", "float32", (1, 2))
    nodes = (
        Node("Mul", ("x", "gain"), ("loud",)),
        Node("Add", ("loud", "s"), ("sN",)),
        Node("Identity", ("sN",), ("y",)),
    )
    outputs = (Value("y", "float32", (1, 2)), Value("sN", "float32", (1, 2)))
    onernn.convert(Graph("sum", (x, s, Value("gain", "float32", ())), outputs, nodes, {}), path)
    return {"model": str(path), "state": "s", "next": "sN", "frame": "[1, 2]", "gain": "3"}


def frame(stream: Any, *numbers: Any, **more: Any) -> dict[str, Any]:
    return {"stream": stream, "frame": list(numbers), **more}


BAD_FRAMES = [
    (frame("bad", 1, 2, 3, begin=True), 400, "frame: expected a list of 2"),
    (frame("bad", 1, "2", begin=True), 400, "frame[1]: expected a number"),
    (frame("bad", 1, True, begin=True), 400, "frame[1]: expected a number, got true"),
    (frame("bad", [1], [2], begin=True), 400, "frame: expected a list of 1"),
    (frame("bad", [1, None], begin=True), 400, "frame[0][1]: expected a number, got null"),
    (frame("bad", math.nan, 1, begin=True), 400, "frame[0]: nan is not a number of float32"),
    (frame("bad", 1, 1e39, begin=True), 400, "frame[1]: 1e+39 is not a number of float32"),
    (frame("bad", 1, -math.inf, begin=True), 400, "frame[1]: -inf is not a number"),
    (frame(7, 1, 2, begin=True), 400, "stream: expected a string"),
    (frame("", 1, 2, begin=True), 400, "stream: expected a string of 1"),
    ({"frame": [1, 2], "begin": True}, 400, "stream: expected a string"),
    (frame("bad", 1, 2, begin=1), 400, "begin: expected true or false"),
    (frame("bad", 1, 2, begin=True, number=3), 409, "number: expected 0"),
    (frame("bad", 1, 2, begin=True, end=True), 400, "expected a frame"),
    ({"stream": "bad"}, 400, "expected a frame"),
    (frame("bad", 3e38, 0, begin=True), 422, "output 'y' is not a finite number at [0, 0]"),
    (frame("bad", 1, 2), 404, "stream 'bad' is not open"),
    ({"stream": "bad", "end": True}, 404, "stream 'bad' is not open"),
]


def test_streams_go_on_by_their_ids(example: Any, tmp_path: Path) -> None:
    arguments = {**summing(tmp_path / "sum.onnx"), "capacity": "10"}
    serve.run(example.streams(arguments), name="t", route_prefix="/streams")

    def client(at: int) -> list[Any]:
        frames = [frame(f"c{at}", at, step, number=step) for step in range(5)]
        frames[0]["begin"] = True
        return [asked(each, "/streams") for each in frames]

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(client, range(8)))
    for at, found in enumerate(results):
        want = [(200, {"y": [[3 * at * (k + 1), 3 * k * (k + 1) / 2]]}) for k in range(5)]
        assert found == want
    assert asked(frame("c1", 1, 1, begin=True), "/streams")[0] == 409
    assert asked(frame("c1", 1, 1, number=4), "/streams")[0] == 409
    assert asked({"stream": "c1", "end": True}, "/streams") == (200, {})
    assert asked(frame("c1", 1, 1), "/streams")[0] == 404
    assert asked(frame("c1", 1, 1, begin=True), "/streams")[1] == {"y": [[3, 3]]}
    for _ in range(3):  # no bad request opens a stream for good
        for body, status, text in BAD_FRAMES:
            code, answer = asked(body, "/streams")
            assert code == status and text in answer["error"], (body, code, answer)
    assert [asked(frame(n, 1, 1, begin=True), "/streams")[0] for n in "abc"] == [200, 200, 503]


def test_frames_of_one_stream_at_once_have_a_result_each(example: Any, tmp_path: Path) -> None:
    serve.run(example.streams(summing(tmp_path / "sum.onnx")), name="t", route_prefix="/streams")
    assert asked(frame("a", 1, 0, begin=True), "/streams")[1] == {"y": [[3, 0]]}
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda _: asked(frame("a", 1, 0), "/streams"), range(32)))
    assert sorted(body["y"][0][0] for _, body in found) == [3 * n for n in range(2, 34)]


def test_a_client_that_hangs_up_leaves_no_result_to_the_next_frame(
    example: Any, tmp_path: Path
) -> None:
    serve.run(example.streams(summing(tmp_path / "sum.onnx")), name="t", route_prefix="/streams")
    asked(frame("a", 1, 0, begin=True), "/streams")
    body = json.dumps(frame("a", 0, 1)).encode()
    head = f"POST /streams HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    for _ in range(10):
        with socket.create_connection(("127.0.0.1", PORT)) as connection:
            connection.sendall(head + body)
    _, answer = asked(frame("a", 1, 0), "/streams")
    (ran,) = [y[1] / 3 for y in answer["y"]]  # frames that were run before this one
    assert answer["y"][0][0] == 6 and 0 <= ran <= 10


def test_streams_of_one_batch_and_idle_streams(example: Any, tmp_path: Path) -> None:
    arguments = summing(tmp_path / "sum.onnx")
    served = example.Streams.func_or_class(
        arguments["model"], {"s": "sN"}, [1, 2], {"gain": 3}, capacity=2
    )

    def answers(*bodies: Any) -> list[Any]:
        return served.answers([served.read(json.dumps(body).encode()) for body in bodies])

    end = {"stream": "a", "end": True}
    begin = frame("a", 1, 0, begin=True)
    assert answers(begin, frame("a", 1, 0), end, frame("a", 1, 0), begin) == [
        (200, {"y": [[3, 0]]}),
        (200, {"y": [[6, 0]]}),
        (200, {}),
        (404, unittest.mock.ANY),
        (200, {"y": [[3, 0]]}),
    ]
    assert [code for code, _ in answers(frame("b", 1, 0, begin=True))] == [200]
    assert [code for code, _ in answers(frame("c", 1, 0, begin=True))] == [503]
    served.opened["a"].used -= 1000
    assert [code for code, _ in answers(frame("c", 1, 0, begin=True))] == [200]
    assert [code for code, _ in answers(frame("a", 1, 0), frame("b", 1, 0))] == [404, 200]
    assert len(served.streams) == 2


@pytest.mark.parametrize(
    "kind, change, text",
    [
        ("sentences", {"model": None}, "model=... is missing"),
        ("sentences", {"model": "nowhere"}, "nowhere: no such file"),
        ("sentences", {"model": str(REPO / "tests/data/onnx/keras_gru/model.onnx")}, "one ragged"),
        ("sentences", {"model": "m.onernn"}, "a compiled file"),
        ("sentences", {"longst": "3"}, "longst=3; did you mean 'longest'"),
        ("streams", {"state": None}, "state=... is missing"),
        ("streams", {"next": None, "nxt": "sN"}, "next=... is missing; did you mean 'nxt'"),
        ("streams", {"state": "S"}, "state 'S': the model has x, s, gain; did you mean 's'"),
        ("streams", {"next": "sM"}, "next 'sM': the model has y, sN"),
        ("streams", {"gain": None}, "one of the inputs ['x', 'gain']"),
        ("streams", {"gain": "loud"}, "gain: expected JSON, got 'loud'"),
        (
            "streams",
            {"gian": "3"},
            "argument 'gian': the model has x, s, gain; did you mean 'gain'",
        ),
        ("streams", {"frame": "[0]"}, "frame: expected positive numbers"),
        ("streams", {"frame": "[1, 3]"}, "x"),
        ("streams", {"idle": "true"}, "idle: expected positive numbers"),
    ],
)
def test_errors_at_the_start_say_what_is_wrong(
    example: Any, kind: str, change: dict[str, Any], text: str, tmp_path: Path
) -> None:
    arguments = {"model": SEGMENTER} if kind == "sentences" else summing(tmp_path / "sum.onnx")
    arguments = {n: text for n, text in {**arguments, **change}.items() if text is not None}
    with pytest.raises((ValueError, OnernnError)) as caught:
        getattr(example, kind)(arguments)
    assert text in str(caught.value)
