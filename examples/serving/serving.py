"""Serves models with Ray Serve: ragged requests in dynamic batches, and streams of frames.

serve run serving:sentences model=../segmenter
serve run serving:streams model=silero_vad.onnx state=state next=stateN frame=[1,576] sr=16000
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from ray import serve
from ray.serve import Application
from starlette.requests import Request
from starlette.responses import JSONResponse

from onernn import BudgetError, OnernnError, Ragged, Session
from onernn.ir.errors import did_you_mean
from onernn.ir.files import is_compiled
from onernn.ir.graph import Value

Answer = tuple[int, dict[str, Any]]
"""The status of a response, and its JSON."""

log = logging.getLogger("ray.serve")


class RefusedError(Exception):
    """A request that is answered with a status of 4xx or 503."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.answer: Answer = status, {"error": why}


# --- Requests: every key and number is checked, and nothing is converted silently.


async def body_of(request: Request, most: int) -> bytes:
    """Reads the body. Raises `RefusedError` if it has more than ``most`` bytes."""
    content = bytearray()
    async for chunk in request.stream():
        content += chunk
        if len(content) > most:
            raise RefusedError(413, f"the request has more than {most:,} bytes")
    return bytes(content)


def fields_of(body: bytes, **kinds: type) -> dict[str, Any]:
    """Returns the keys of a JSON object. Raises `RefusedError` for unknown keys and wrong types."""
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RefusedError(400, f"the body is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise RefusedError(400, f"expected a JSON object with the keys {', '.join(kinds)}")
    for key, value in fields.items():
        if key not in kinds:
            raise RefusedError(400, f"unknown key {key[:80]!r}{did_you_mean(key[:80], kinds)}")
        if type(value) is not kinds[key]:
            wanted = {str: "a string", bool: "true or false", int: "an integer", list: "a list"}
            raise RefusedError(400, f"{key}: expected {wanted[kinds[key]]}")
    return fields


def session_of(model: str) -> Session:
    """Opens a model. Raises `ValueError` for a compiled file, which has no graph to look into."""
    if is_compiled(model):
        raise ValueError(f"{model}: a compiled file; give the model that it was made of")
    return Session(model, threads=1)


def is_number(value: Value) -> bool:
    """Whether an input declares integers or floats."""
    return value.dtype is not None and np.dtype(value.dtype).kind in "iuf"


def array_of(key: str, value: Any, dtype: np.dtype[Any], shape: tuple[int | None, ...]) -> Any:
    """Returns nested lists of numbers as an array. Raises `RefusedError` with key and position."""
    if dtype.kind in "iu":
        low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    else:
        low, high = (float(getattr(np.finfo(dtype), name)) for name in ("min", "max"))

    def check(where: str, value: Any, sizes: tuple[int | None, ...]) -> None:
        if sizes:
            size = sizes[0]
            if type(value) is not list or size not in (None, len(value)):
                some = "a list" if size is None else f"a list of {size}"
                raise RefusedError(400, f"{where}: expected {some}")
            for index, each in enumerate(value):
                check(f"{where}[{index}]", each, sizes[1:])
        elif type(value) is not int and (dtype.kind in "iu" or type(value) is not float):
            wanted = "an integer" if dtype.kind in "iu" else "a number"
            raise RefusedError(400, f"{where}: expected {wanted}, got {json.dumps(value)[:80]}")
        elif not low <= value <= high:
            raise RefusedError(400, f"{where}: {str(value)[:80]} is not a number of {dtype}")

    check(key, value, shape)
    return np.array(value, dtype).reshape([len(value) if s is None else s for s in shape])


def refused(key: str, error: Exception) -> Answer:
    """Returns the answer to a request that the model refuses, without its operators' names."""
    if not isinstance(error, OnernnError):
        log.error("unforeseen error", exc_info=error)
        return 500, {"error": "internal error"}
    reason = str(error).splitlines()[0].rpartition("): ")[2]
    return 422, {"error": f"{key}: the model refuses it: {reason}"}


def answer_of(outputs: dict[str, Any]) -> Answer:
    """Returns outputs as lists; JSON has no NaN and no infinity."""
    for name, array in outputs.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            position = [int(index) for index in np.argwhere(~np.isfinite(array))[0]]
            return 422, {"error": f"output {name!r} is not a finite number at {position}"}
    return 200, {name: array.tolist() for name, array in outputs.items()}


# --- Ragged requests


@serve.deployment(max_ongoing_requests=256, max_queued_requests=1024)
class Sentences:
    """POST {"values": [3, 1, 4]}, the steps of one sequence -> every output, by name.

    Requests that come within 5 ms run as one ragged batch, without padding.
    """

    def __init__(self, model: str, longest: int = 5000, most_bytes: int = 1_000_000) -> None:
        """``longest``: steps of a request; ``most_bytes``: of its body. Raises `ValueError`."""
        self.session = session_of(model)
        ragged = [v for v in self.session.inputs if v.lod_depth == 1 and v.shape and is_number(v)]
        if len(self.session.inputs) != 1 or not ragged or None in (ragged[0].shape or ())[1:]:
            inputs = "; ".join(map(str, self.session.inputs))
            raise ValueError(
                f"model {model}: expected one ragged input of a known type; it takes {inputs}"
            )
        (self.input,) = ragged
        self.dtype, self.shape = np.dtype(self.input.dtype), (None, *(self.input.shape or ())[1:])
        self.longest, self.most_bytes = longest, most_bytes
        graph = self.session.graph  # a row that a table lacks is found before it joins a batch
        tables = [
            graph.constants[node.inputs[0]].shape[node.attrs.axis]
            for node in graph.nodes
            if node.op == "Gather"
            and node.inputs[1] == self.input.name
            and node.inputs[0] in graph.constants
        ]
        self.rows = min(tables, default=None)

    def read(self, body: bytes) -> Any:
        """Returns the sequence of a request. Raises `RefusedError`."""
        fields = fields_of(body, values=list)
        if "values" not in fields:
            raise RefusedError(400, "the key 'values' is missing")
        if len(fields["values"]) > self.longest:
            raise RefusedError(413, f"values: more than {self.longest:,} steps")
        array = array_of("values", fields["values"], self.dtype, self.shape)
        if self.rows is not None:
            beyond = np.argwhere((array < 0) | (array >= self.rows))
            if len(beyond):
                place = "".join(f"[{index}]" for index in beyond[0])
                number = array[tuple(beyond[0])]
                raise RefusedError(422, f"values{place}: {number} is not in 0 to {self.rows - 1}")
        return array

    @serve.batch(max_batch_size=64, batch_wait_timeout_s=0.005)
    async def answer(self, sentences: list[Any]) -> list[Answer]:
        return await asyncio.to_thread(self.answers, sentences)

    def answers(self, sentences: list[Any]) -> list[Answer]:
        """Returns an answer to each; halves a batch that is refused, until one sender is told."""
        try:
            return self.run(sentences)
        except Exception as error:
            if len(sentences) == 1:
                return [refused("values", error)]
        half = len(sentences) // 2
        return self.answers(sentences[:half]) + self.answers(sentences[half:])

    def run(self, sentences: list[Any]) -> list[Answer]:
        lengths = [len(each) for each in sentences]
        batch = Ragged.from_lengths(np.concatenate(sentences), np.array(lengths))
        columns = {
            name: value.to_list() if isinstance(value, Ragged) else list(value)
            for name, value in self.session.run({self.input.name: batch}).items()
        }
        for name, column in columns.items():
            if len(column) != len(sentences):
                raise RuntimeError(f"output {name!r} has {len(column)} rows for {len(sentences)}")
        return [
            answer_of({name: np.asarray(column[at]) for name, column in columns.items()})
            for at in range(len(sentences))
        ]

    async def __call__(self, request: Request) -> JSONResponse:
        try:
            body = await body_of(request, self.most_bytes)
            status, content = await self.answer(await asyncio.to_thread(self.read, body))
        except RefusedError as error:
            status, content = error.answer
        return JSONResponse(content, status)


# --- Streams


@dataclass
class Open:
    """An open stream: its id, how many frames it had, when it had the last one."""

    stream: int
    frames: int
    used: float


@dataclass(frozen=True)
class Asked:
    """A request of a stream."""

    stream: str
    begin: bool
    end: bool
    number: int | None
    frame: Any


@serve.deployment(num_replicas=1, max_ongoing_requests=1024, max_queued_requests=1024)
class Streams:
    """POST {"stream": "caller 7", "begin": true, "frame": [...]} -> that frame's outputs.

    Later frames leave "begin" out; {"stream": "caller 7", "end": true} ends it. Frames that wait at
    the same time run as one batch. One replica holds all states; more replicas need a router that
    sends a stream to the same one (Ray Serve's model multiplexing does, with the stream as the
    model's id).
    """

    def __init__(
        self,
        model: str,
        states: dict[str, str],
        frame: list[int] | None = None,
        given: dict[str, Any] | None = None,
        capacity: int = 1000,
        idle: float = 60,
        most_bytes: int = 1_000_000,
    ) -> None:
        """``frame``: its sizes, if the model leaves them open; ``given``: values that are the same
        for all streams, such as a sample rate; ``idle``: seconds without a frame after which a
        stream is closed; ``most_bytes``: of a request. Raises `ValueError`."""
        session, alike = session_of(model), given or {}
        names = [value.name for value in session.inputs]
        outputs = [value.name for value in session.graph.outputs]
        for what, name, known in [
            *(("state", name, names) for name in states),
            *(("next", name, outputs) for name in states.values()),
            *(("argument", name, names) for name in alike),
        ]:
            if name not in known:
                hint = did_you_mean(name, known)
                raise ValueError(f"{what} {name!r}: the model has {', '.join(known)}{hint}")
        frames = [v for v in session.inputs if v.name not in {*states, *alike}]
        if len(frames) != 1:
            names = [value.name for value in frames]
            raise ValueError(f"a frame is one of the inputs {names}; give the others as NAME=JSON")
        (value,) = frames
        if frame is None and value.shape is None:
            raise ValueError(
                f"frame: the model does not declare the sizes of {value}; say frame=[1,576]"
            )
        self.shape = tuple(frame or [size or 1 for size in value.shape or ()])
        if value.dtype and not is_number(value):
            raise ValueError(f"{value}: frames are numbers")
        self.dtype = np.dtype(value.dtype or "float32")
        sized = replace(value.declare(self.shape), dtype=self.dtype.name)
        sizes = {value.name: sized} if frame else None
        self.streams = session.streams(capacity, states, given=alike, inputs=sizes)
        self.opened: dict[str, Open] = {}  # the one that was used last is the last one
        self.idle, self.most_bytes = idle, most_bytes

    def read(self, body: bytes) -> Asked:
        """Returns a request. Raises `RefusedError`."""
        fields = fields_of(body, stream=str, begin=bool, end=bool, number=int, frame=list)
        if not 0 < len(fields.get("stream", "")) <= 200:
            raise RefusedError(400, "stream: expected a string of 1 to 200 characters")
        begin, end = fields.get("begin", False), fields.get("end", False)
        if begin and end or ("frame" in fields) == end:
            raise RefusedError(400, "expected a frame, with begin if it is the first, or end")
        frame = None
        if not end:
            is_flat = not any(type(each) is list for each in fields["frame"])
            shape = (math.prod(self.shape),) if is_flat else self.shape
            frame = array_of("frame", fields["frame"], self.dtype, shape).reshape(self.shape)
        return Asked(fields["stream"], begin, end, fields.get("number"), frame)

    @serve.batch(max_batch_size=256, batch_wait_timeout_s=0.002)
    async def answer(self, asked: list[Asked]) -> list[Answer]:
        return await asyncio.to_thread(self.answers, asked)

    def answers(self, asked: list[Asked]) -> list[Answer]:
        """Returns an answer to each request; those of one stream run one after another."""
        self.close_idle()
        result: dict[int, Answer] = {}
        while len(result) < len(asked):
            first: dict[str, int] = {}
            for at, each in enumerate(asked):
                if at not in result:
                    first.setdefault(each.stream, at)
            result |= self.run({at: asked[at] for at in first.values()})
        return [result[at] for at in range(len(asked))]

    def run(self, asked: dict[int, Asked]) -> dict[int, Answer]:
        """Runs a request each of different streams: all push before one pulls."""
        result: dict[int, Answer] = {}
        for at, each in asked.items():
            try:
                entry = self.entry(each)
                if each.end:
                    self.close(each.stream)
                    result[at] = 200, {}
                else:
                    self.streams.push(entry.stream, each.frame)
            except RefusedError as error:
                result[at] = error.answer
        for at in [at for at in asked if at not in result]:
            name = asked[at].stream
            entry = self.opened[name] = self.opened.pop(name)  # the last one now
            try:
                (outputs,) = self.streams.pull(entry.stream)
            except Exception as error:  # the state stays as it was
                result[at] = refused("frame", error)
            else:
                entry.frames, entry.used = entry.frames + 1, time.monotonic()
                result[at] = answer_of(outputs)
            if asked[at].begin and result[at][0] != 200:
                self.close(name)
        return result

    def entry(self, asked: Asked) -> Open:
        """Returns the open stream of a request, a new one if it begins. Raises `RefusedError`."""
        name, entry = asked.stream, self.opened.get(asked.stream)
        if asked.begin:
            if entry:
                raise RefusedError(409, f"stream {name!r} is open: go on without begin, or end it")
            if asked.number:
                raise RefusedError(409, f"number: expected 0 with begin, got {asked.number}")
            try:
                entry = self.opened[name] = Open(self.streams.open(), 0, time.monotonic())
            except BudgetError as error:
                raise RefusedError(503, "as many streams as there may be are open") from error
        elif not entry:
            raise RefusedError(
                404,
                f'stream {name!r} is not open: begin it with "begin": true; streams end after'
                f" {self.idle:g} s without a frame, and with the replica",
            )
        if asked.number not in (None, entry.frames):
            raise RefusedError(409, f"number: expected {entry.frames}, got {asked.number}")
        return entry

    def close(self, name: str) -> None:
        self.streams.close(self.opened.pop(name).stream)

    def close_idle(self) -> None:
        """Closes the streams that had no frame for ``idle`` seconds."""
        now = time.monotonic()
        for name, entry in list(self.opened.items()):
            if now - entry.used < self.idle:
                return
            self.close(name)

    async def __call__(self, request: Request) -> JSONResponse:
        try:
            body = await body_of(request, self.most_bytes)
            status, content = await self.answer(await asyncio.to_thread(self.read, body))
        except RefusedError as error:
            status, content = error.answer
        return JSONResponse(content, status)


# --- What `serve run` calls: arguments are checked, and the model is loaded once, before it deploys


def option(arguments: dict[str, str], name: str) -> str:
    """Takes an argument. Raises `ValueError` if it is missing."""
    if name not in arguments:
        hint = did_you_mean(name, arguments)
        raise ValueError(f"argument {name}=... is missing{hint}; see README.md")
    return arguments.pop(name)


def values_of(arguments: dict[str, str]) -> dict[str, Any]:
    """Returns arguments that are JSON. Raises `ValueError` naming one that is not."""
    values = {}
    for name, text in arguments.items():
        try:
            values[name] = json.loads(text)
        except ValueError as error:
            raise ValueError(f"argument {name}: expected JSON, got {text!r}: {error}") from error
    return values


def sentences(arguments: dict[str, str]) -> Application:
    """``model``, and what `Sentences` takes."""
    arguments = dict(arguments)
    model, values = str(Path(option(arguments, "model")).resolve()), values_of(arguments)
    known = ("longest", "most_bytes")
    for name, value in values.items():
        if name not in known or type(value) is not int or value < 1:
            hint = f"; expected {' and '.join(known)}, integers of 1 or more"
            raise ValueError(f"argument {name}={value}{did_you_mean(name, known)}{hint}")
    Sentences.func_or_class(model, **values)
    return Sentences.bind(model, **values)


def streams(arguments: dict[str, str]) -> Application:
    """``model``, ``state``, ``next``; in JSON what `Streams` takes, and values of other inputs."""
    arguments = dict(arguments)
    model, state, after = (option(arguments, name) for name in ("model", "state", "next"))
    given = values_of(arguments)
    kinds = {"frame": list, "capacity": int, "idle": (int, float), "most_bytes": int}
    values = {name: given.pop(name) for name in kinds if name in given}
    for name, value in values.items():
        sizes = value if isinstance(value, list) else [value]
        wrong = any(type(size) not in (int, float) or size <= 0 for size in sizes)
        if wrong or not isinstance(value, kinds[name]):
            raise ValueError(f"argument {name}: expected positive numbers, got {value!r}")
    values |= {"model": str(Path(model).resolve()), "states": {state: after}, "given": given}
    Streams.func_or_class(**values)
    return Streams.bind(**values)
