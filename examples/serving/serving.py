"""Behind Ray Serve: ragged requests in dynamic batches, and streams that go on from call to call.

serve run serving:sentences model=../segmenter
serve run serving:streams model=silero_vad.onnx state=state next=stateN frame=[1,576] sr=16000
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import numpy as np
from ray import serve
from ray.serve import Application
from starlette.requests import Request

from onernn import BudgetError, OnernnError, Ragged, Session, ShapeError
from onernn.ir.graph import Value


@serve.deployment(max_ongoing_requests=256)
class Sentences:
    """POST {"values": [3, 1, 4]}, the words of one sentence -> every output, by name.

    Requests that come within 5 ms run as one ragged batch: nobody is padded.
    """

    def __init__(self, model: str) -> None:
        self.session = Session(model, threads=1)
        (self.input,) = self.session.graph.inputs

    @serve.batch(max_batch_size=64, batch_wait_timeout_s=0.005)
    async def answer(self, sentences: list[np.ndarray]) -> list[Any]:
        try:
            return self.run(sentences)
        except OnernnError:  # one of them: each alone, so that only its sender is told
            return [self.alone(each) for each in sentences]

    def alone(self, sentence: np.ndarray) -> Any:
        try:
            return self.run([sentence])[0]
        except OnernnError as error:
            return error

    def run(self, sentences: list[np.ndarray]) -> list[Any]:
        """Values and lengths are what a LoD is made of."""
        lengths = np.array([len(each) for each in sentences])
        made = self.session.run(
            {self.input.name: Ragged.from_lengths(np.concatenate(sentences), lengths)}
        )
        columns = {
            name: value.to_list() if isinstance(value, Ragged) else list(value)
            for name, value in made.items()
        }
        return [
            {name: np.asarray(column[at]).tolist() for name, column in columns.items()}
            for at in range(len(sentences))
        ]

    async def __call__(self, request: Request) -> Any:
        values = (await request.json())["values"]
        return _told(await self.answer(np.asarray(values, self.input.dtype)))


@serve.deployment(num_replicas=1, max_ongoing_requests=1024)
class Streams:
    """POST {"stream": "caller 7", "frame": [...]} -> that frame's outputs; {"end": true} ends it.

    Frames that wait at the same time run as one batch. One replica holds all states; more replicas
    need a router that sends a stream to the same one (Ray Serve's model multiplexing does, with
    the stream as the model's id).
    """

    def __init__(
        self,
        model: str,
        states: dict[str, str],
        frame: list[int] | None = None,
        given: dict[str, Any] | None = None,
        capacity: int = 1000,
    ) -> None:
        """``frame``: its sizes, where the model leaves them open; ``given``: what all streams give
        alike, such as a sample rate."""
        session, alike = Session(model, threads=1), given or {}
        (value,) = (v for v in session.graph.inputs if v.name not in {*states, *alike})
        self.shape = frame or [size or 1 for size in value.shape or ()]
        sizes = {value.name: Value(value.name, "float32", tuple(self.shape))} if frame else None
        self.streams = session.streams(capacity, states, given=alike, inputs=sizes)
        self.opened: dict[str, int] = {}

    async def __call__(self, request: Request) -> Any:
        asked = await request.json()
        name = str(asked["stream"])
        try:
            if asked.get("end"):
                self.streams.close(self.opened.pop(name))
                return {}
            if name not in self.opened:
                self.opened[name] = self.streams.open()
            stream = self.opened[name]
            self.streams.push(stream, np.asarray(asked["frame"], "float32").reshape(self.shape))
            await asyncio.sleep(0)  # others push, too: the first one that pulls runs them all
            (made,) = self.streams.pull(stream)
        except (BudgetError, ShapeError, KeyError, ValueError) as error:
            return _told(error)
        return {key: array.tolist() for key, array in made.items()}


def _told(answer: Any) -> Any:
    return {"error": str(answer)} if isinstance(answer, Exception) else answer


def sentences(arguments: dict[str, str]) -> Application:
    return Sentences.bind(arguments["model"])


def streams(arguments: dict[str, str]) -> Application:
    """``frame`` and all else but the model and its state are JSON; see `Streams`."""
    model, state, after = (arguments.pop(name) for name in ("model", "state", "next"))
    given = {name: json.loads(text) for name, text in arguments.items()}
    return Streams.bind(model, {state: after}, given.pop("frame", None), given)
