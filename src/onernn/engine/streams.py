"""Many clients on one session: each tick runs all streams that wait as one batch."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from threading import Lock

import numpy as np

from onernn.engine.chunks import Stateful
from onernn.engine.session import Session
from onernn.fuse_passes import fuse
from onernn.fuse_passes.mapping import Mapper
from onernn.fuse_passes.over_time import bind
from onernn.ir.arrays import Array
from onernn.ir.errors import BudgetError, OnernnError, Refusal, ShapeError, UnsupportedError
from onernn.ir.feeds import checked_feed, checked_given
from onernn.ir.graph import Graph, Value
from onernn.ir.ragged import data_of
from onernn.ir.records import dataclass

Frame = Mapping[str, Array]
_NONE: dict[str, Array] = {}
_KINDS = 16  # of frames, for which a model with branches is kept ready


class Streams:
    """Streams of one model; `Session.streams` makes them. Safe to share between threads.

    A stream's states are one row of an array for all streams. Results do not depend on other
    streams: operators work row by row. ``first``: states before the first frame, in place of the
    model's.

    If the model cannot run row by row as it stands, for instance because a branch depends on the
    sample rate, frames of one kind run together: of the same shapes, and of the same integers
    without axes. Their graph has these shapes and integers in it, so that its branches are decided.
    """

    def __init__(
        self,
        session: Session,
        model: Stateful,
        capacity: int,
        first: Mapping[str, Array],
        *,
        queue: int,
    ) -> None:
        graph, states = model.graph, model.states
        self._inputs = tuple(value for value in graph.inputs if value.name not in states)
        self._capacity, self._most = capacity, queue
        self._next = dict(states)
        if unknown := sorted(first.keys() - states.keys()):
            raise ShapeError(f"first: {unknown[0]!r} is no state; there are {', '.join(states)}")
        given = checked_given(graph, first)
        self._first = {n: given[n] if n in given else model.initial(n) for n in states}
        try:
            self._states = {
                name: np.zeros((capacity, *array.shape), array.dtype)
                for name, array in self._first.items()
                if name not in model.growing
            }
        except (MemoryError, ValueError):
            raise BudgetError(f"no memory for the states of {capacity} streams") from None
        self._own: dict[int, dict[str, Array]] = {}  # states whose sizes change, by stream
        self._session, self._graph = session, graph
        self._alike: tuple[str, ...] = ()
        self._of_kinds: dict[_Kind, Session | UnsupportedError] = {}
        self._whole: Session | None = None
        try:
            self._whole = session.with_graph(_over_streams(graph), rows_apart=True)
        except UnsupportedError:
            self._alike = tuple(v.name for v in self._inputs if _decides(v))
            is_fixed = all(v.shape is not None and None not in v.shape for v in graph.inputs)
            if is_fixed and not self._alike:
                raise
        self._waiting: dict[int, list[dict[str, Array]]] = {}
        self._done: dict[int, list[dict[str, Array] | OnernnError]] = {}
        self._made: _Made | None = None
        self._rows: dict[int, int] = {}  # of the states, by open stream
        self._ids = itertools.count()  # none is used twice: an old one never names a new stream
        self._new, self._free = iter(range(capacity)), list[int]()
        self._lock = Lock()

    def __len__(self) -> int:
        """Returns how many are open."""
        return len(self._waiting)

    def open(self) -> int:
        """Opens a stream with the first states; returns its id, which no later stream gets.

        Raises `BudgetError` if ``capacity`` are open.
        """
        with self._lock:
            row = self._free.pop() if self._free else next(self._new, None)
            if row is None:
                raise BudgetError(
                    f"{self._capacity} streams are open, as many as there may be: close one, or"
                    " make more room with streams(capacity)"
                )
            for name, array in self._states.items():
                array[row] = self._first[name]
            stream = next(self._ids)
            own = {n: array for n, array in self._first.items() if n not in self._states}
            self._own[stream] = own or _NONE
            self._waiting[stream], self._done[stream] = [], []
            self._rows[stream] = row
            return stream

    def close(self, stream: int) -> None:
        """Ends a stream and drops its waiting frames. Raises `ShapeError` if it is not open."""
        with self._lock:
            self._check(stream)
            del self._waiting[stream], self._done[stream], self._own[stream]
            self._free.append(self._rows.pop(stream))

    def push(self, stream: int, frame: Frame | Array) -> None:
        """Adds what the model takes in one call, by name; one array where it takes one input.

        Raises `ShapeError` where it does not fit the model, `BudgetError` where ``queue`` frames
        wait already: call `pull` more often, or push less.
        """
        if not isinstance(frame, Mapping):
            if len(self._inputs) != 1:
                names = ", ".join(value.name for value in self._inputs)
                raise ShapeError(f"a frame: expected arrays by name, of {names}")
            frame = {self._inputs[0].name: frame}
        result = {
            name: np.array(data_of(value), order="C")  # the caller may use its own again
            for name, value in checked_feed(self._inputs, frame).items()
        }
        with self._lock:
            self._check(stream)
            if len(self._waiting[stream]) >= self._most:
                raise BudgetError(
                    f"stream {stream}: {self._most} frames wait already; pull, push less, or make"
                    " more room with streams(queue=)"
                )
            self._waiting[stream].append(result)

    def pull(self, stream: int) -> list[dict[str, Array]]:
        """Returns all results of a stream that were not pulled yet, in order, one for each frame.

        Runs the ticks that they need; each takes the oldest frame of every stream that waits.
        Raises what the model raised for a frame, once the results before it have been pulled: that
        frame is left out, and the state stays as it was.
        """
        with self._lock:
            self._check(stream)
            while True:
                done = self._done[stream]
                found = list[dict[str, Array]]()
                for result in done:
                    if isinstance(result, OnernnError):
                        self._done[stream] = done[max(1, len(found)) :]
                        if found:
                            return found
                        raise result
                    found.append(result)
                if not self._waiting[stream]:
                    self._done[stream] = []
                    return found
                self._tick(stream)

    def tick(self) -> int:
        """Runs the oldest frame of every stream that waits; how many that were."""
        with self._lock:
            return self._tick()

    def _check(self, stream: int) -> None:
        self._put()
        if stream not in self._waiting:
            raise ShapeError(f"stream {stream} is not open")

    def _tick(self, pulled: int | None = None) -> int:
        """``pulled``: a stream whose results are about to be pulled, however many they are."""
        self._put()
        ready = [
            stream
            for stream, frames in self._waiting.items()
            if frames and (stream == pulled or len(self._done[stream]) < self._most)
        ]
        for streams in self._groups(ready):
            self._run(streams)
        return len(ready)

    def _groups(self, ready: list[int]) -> Iterator[list[int]]:
        """Streams whose oldest frames are of one kind."""
        groups: dict[_Kind, list[int]] = {}
        for stream in ready:
            groups.setdefault(self._kind(stream), []).append(stream)
        yield from groups.values()

    def _kind(self, stream: int) -> _Kind:
        """Returns the shapes of its oldest frame and of its own states, and the integers that
        decide.
        """
        frame = self._waiting[stream][0]
        arrays = (*frame.values(), *self._own[stream].values())
        return tuple(a.shape for a in arrays), tuple(int(frame[name]) for name in self._alike)

    def _runner(self, stream: int) -> Session:
        """Returns what runs frames of the kind of this stream's oldest one.

        Raises `UnsupportedError` naming the operator that mixes streams.
        """
        if self._whole:
            return self._whole
        kind = self._kind(stream)
        if kind not in self._of_kinds:
            if len(self._of_kinds) == _KINDS:
                del self._of_kinds[next(iter(self._of_kinds))]
            frame = self._waiting[stream][0]
            arrays = {**self._first, **self._own[stream], **frame}
            known = {name: arrays.pop(name) for name in self._alike}
            declared = {n: Value(n, a.dtype.name, a.shape) for n, a in arrays.items()}
            try:
                taken = fuse(bind(self._graph, known, declared)).model
                runner = self._session.with_graph(_over_streams(taken), rows_apart=True)
                self._of_kinds[kind] = runner
            except UnsupportedError as error:
                self._of_kinds[kind] = error
        result = self._of_kinds[kind]
        if isinstance(result, UnsupportedError):
            raise result.with_traceback(None)
        return result

    def _run(self, streams: list[int]) -> None:
        count = len(streams)
        batch = streams + streams[-1:] * (min(_round_batch(count), self._capacity) - count)
        frames = [self._waiting[stream][0] for stream in batch]
        names = [value.name for value in self._inputs if value.name not in self._alike]
        feed = {name: np.stack([frame[name] for frame in frames]) for name in names}
        rows = [self._rows[stream] for stream in batch]
        feed |= {name: array[rows] for name, array in self._states.items()}
        own = [self._own[stream] for stream in batch]
        feed |= {name: np.stack([each[name] for each in own]) for name in own[0]}
        results: list[dict[str, Array] | OnernnError]
        try:
            outputs = self._runner(streams[0]).run(feed)
            result = {name: data_of(value) for name, value in outputs.items()}
            states = {name: self._state(name, result[after]) for name, after in self._next.items()}
        except OnernnError as error:
            if count > 1:  # which frame that was
                for stream in streams:
                    self._run([stream])
                return
            states, results = {}, [error]
        else:
            shown = [name for name in result if name not in self._next.values()]
            results = [
                {name: result[name][index].copy() for name in shown} for index in range(count)
            ]
        self._made = _Made(
            {n: (rows[:count], array[:count]) for n, array in states.items() if n in self._states},
            {
                stream: {name: states[name][index].copy() for name in own[index]}
                for index, stream in enumerate(streams)
                if states and own[index]
            },
            {stream: self._waiting[stream][1:] for stream in streams},
            {s: [*self._done[s], result] for s, result in zip(streams, results, strict=True)},
        )
        self._put()

    def _put(self) -> None:
        """Puts back what a tick has made. An interrupt here loses no frame and runs none
        twice: to do it again changes nothing, and every call begins with it."""
        if self._made is None:
            return
        for name, (rows, array) in self._made.states.items():
            self._states[name][rows] = array
        self._own.update(self._made.own)
        self._waiting.update(self._made.waiting)
        self._done.update(self._made.done)
        self._made = None

    def _state(self, name: str, made: Array) -> Array:
        """Returns the next states of some streams. Raises `ShapeError` where they do not fit."""
        first = self._first[name]
        same = made.shape[1:] == first.shape or (
            name not in self._states and made.ndim == 1 + first.ndim
        )
        if not same or not np.can_cast(made.dtype, first.dtype, "same_kind"):
            raise ShapeError(
                f"state {name!r}: expected {first.dtype} {first.shape}, the frame made"
                f" {made.dtype} {made.shape[1:]}; a stream of another batch needs first="
            )
        return made.astype(first.dtype, copy=False)


_Kind = tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]


@dataclass(frozen=True, eq=False)
class _Made:
    """The results of a tick, by state or by stream."""

    states: dict[str, tuple[list[int], Array]]
    own: dict[int, dict[str, Array]]
    waiting: dict[int, list[dict[str, Array]]]
    done: dict[int, list[dict[str, Array] | OnernnError]]


def _decides(value: Value) -> bool:
    """Returns whether an input is one integer, which branches and shapes may depend on."""
    return value.shape == () and np.dtype(value.dtype or "float32").kind in "iub"


def _round_batch(count: int) -> int:
    """Returns a batch of a few sizes, eight for each power of two: oneDNN keeps primitives of
    each.
    """
    unit = 1 << max(0, count.bit_length() - 4)
    return -(-count // unit) * unit


def _over_streams(graph: Graph) -> Graph:
    """Returns the model of a batch of streams, axis 0 of every input and output."""
    mapper = Mapper.of(graph, graph.inputs)
    for node in graph.nodes:
        mapper.add(node)
    fixed = [value.name for value in graph.outputs if value.name not in mapper.mapped]
    if fixed:
        raise UnsupportedError(
            f"{graph.name} as streams:", (Refusal("it depends on no input", fixed[0]),)
        )
    return mapper.model()
