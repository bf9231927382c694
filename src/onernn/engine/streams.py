"""Runs a model for many clients: each tick runs one batch of all streams that have a waiting
frame.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from threading import Lock
from typing import NamedTuple, overload

import numpy as np

from onernn.engine.chunks import Stateful
from onernn.engine.saved_streams import read_states, write_states
from onernn.engine.session import Session
from onernn.fuse_passes import fuse
from onernn.fuse_passes.mapping import Mapper, find_unmappable
from onernn.fuse_passes.over_time import bind, find_sizes
from onernn.ir.arrays import Array, digest
from onernn.ir.errors import (
    BudgetError,
    FrameError,
    OnernnError,
    Refusal,
    ShapeError,
    UnsupportedError,
)
from onernn.ir.feeds import check_feed, check_given
from onernn.ir.graph import Graph, Value, with_rows
from onernn.ir.ragged import Ragged, as_array, data_of
from onernn.ir.records import NOTHING, cached_property, dataclass
from onernn.ir.types import Counts

Frame = Mapping[str, Array]
_NONE: dict[str, Array] = {}
_KINDS = 16  # limit for the number of sessions; each kind of frames (see `Streams`) needs one


class Streams:
    """Streams of one model; `Session.streams` makes them. Safe to share between threads.

    Arrays hold the states of all streams, one row per stream. Results do not depend on other
    streams: operators work row by row. ``first``: states before the first frame, which replace the
    model's initial states.

    Some models cannot run row by row without changes, for instance because a branch depends on the
    sample rate. Then frames of one kind run together. Frames of one kind have the same shapes, and
    the same values of integer inputs without axes. Each kind runs a copy of the graph in which
    these shapes and integers are constants, so that every branch is resolved.

    >>> x, s, after = (onernn.Value(name, "float32", (1,)) for name in ("x", "s", "after"))
    >>> add = onernn.Node("Add", ("x", "s"), ("after",))
    >>> model = onernn.Graph("sum", (x, s), (after,), (add,), {})
    >>> streams = onernn.Session(model).streams(100, {"s": "after"})
    >>> clients = [streams.open(), streams.open()]
    >>> streams.push(clients, np.array([[1], [2]], "f4"))
    >>> streams.push(clients, np.array([[10], [20]], "f4"))
    >>> [streams.pull(clients)["after"].ravel().tolist() for frame in range(2)]
    [[1.0, 2.0], [11.0, 22.0]]
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
        self._inputs = tuple(_settle(graph, v) for v in graph.inputs if v.name not in states)
        self._capacity, self._most = capacity, queue
        self._next, self._time, self._least = dict(states), model.time, model.least
        if unknown := sorted(first.keys() - states.keys()):
            names = ", ".join(states)
            raise ShapeError(f"first: {unknown[0]!r} is not a state: expected one of {names}")
        given = check_given(graph, first)
        self._first = {n: given[n] if n in given else model.initial(n) for n in states}
        try:
            self._states = {
                name: np.zeros((capacity, *array.shape), array.dtype)
                for name, array in self._first.items()
                if name not in model.growing
            }
        except (MemoryError, ValueError):
            raise BudgetError(
                f"capacity={capacity}: no memory for the states of so many streams; decrease it"
            ) from None
        # by stream: its states whose sizes change from call to call
        self._own: dict[int, dict[str, Array]] = {}
        self._session, self._graph = session, graph
        self._alike: tuple[str, ...] = ()
        self._of_kinds: dict[_Kind, Session | OnernnError] = {}
        # a batch size, and the inputs as declared for batches of this size
        self._wide: tuple[int, tuple[Value, ...]] | None = None
        self._searches = 0
        self._whole: Session | None = None
        try:
            self._whole = session.with_graph(over_streams(graph), rows_apart=True)
        except UnsupportedError:
            # integers on which branches may depend
            dtypes = {v.name: v.dtype or "float32" for v in self._inputs if v.shape == ()}
            self._alike = tuple(n for n, d in dtypes.items() if np.dtype(d).kind in "iub")
            is_fixed = all(v.shape is not None and None not in v.shape for v in self._inputs)
            # all frames are of one kind: prepares its session now
            if is_fixed and not (self._alike or self._growing):
                known = {n: Value(n, a.dtype.name, a.shape) for n, a in self._first.items()}
                self._whole = session.with_graph(self._bind({}, known), rows_apart=True)
            elif refusal := find_unmappable(graph, self._alike):
                raise UnsupportedError(f"{graph.name} as streams:", (refusal,)) from None
        layers = session.layers.values()
        # whether batch sizes are rounded up, for layers on oneDNN
        self._rounds = any(each.layer.compiled is None for each in layers)
        self._waiting: dict[int, list[_Entry]] = {}
        self._done: dict[int, list[_Entry | OnernnError]] = {}
        self._made: _Made | None = None
        self._rows: dict[int, int] = {}  # the row of states, by the id of an open stream
        self._ids = itertools.count()  # no id is used twice: an old id never names a new stream
        self._new, self._free = iter(range(capacity)), list[int]()
        self._lock = Lock()

    def __len__(self) -> int:
        """Returns the number of open streams."""
        return len(self._rows)

    def open(self, *, state: bytes | None = None) -> int:
        """Opens a stream with the first states, or with a saved ``state`` of one stream (`save`).

        Returns its id, which no later stream gets. Raises `BudgetError` if ``capacity`` streams are
        open, and the errors of `restore`.
        """
        if state is None:
            with self._lock:
                return self._open(1, {n: array[None] for n, array in self._first.items()})[0]
        old, states = self._read(state)
        if len(old) != 1:
            raise ShapeError(f"state: expected one stream, got {len(old)}; restore() opens them")
        with self._lock:
            return self._open(1, states)[0]

    def close(self, stream: int) -> None:
        """Ends a stream and drops its waiting frames. Raises `ShapeError` if it is not open."""
        with self._lock:
            self._check([stream])
            self._free.append(self._rows.pop(stream))
            del self._waiting[stream], self._done[stream], self._own[stream]

    def save(self, stream: int | None = None) -> bytes:
        """Returns the state of one stream, or of all, as bytes for `open` and `restore`.

        First runs the frames that wait, so this is the state after the last pushed frame. Results
        that were not pulled are not in the bytes. The bytes contain a digest of the model.
        """
        with self._lock:
            ids = [*self._rows] if stream is None else [stream]
            self._check(ids)
            while any(self._waiting[each] for each in ids):
                self._tick(ids)
            states = {
                name: [
                    self._states[name][self._rows[each]]
                    if name in self._states
                    else self._own[each][name]
                    for each in ids
                ]
                for name in self._first
            }
            return write_states(self._digest, ids, states, frozenset(self._growing))

    def restore(self, saved: bytes) -> dict[int, int]:
        """Opens the streams that `save` wrote; returns a dictionary from each old id to the new id.

        Raises `ModelFormatError` if `save` did not write the bytes, if they were changed, or if
        they belong to a different model. Raises `BudgetError` if there are more streams than
        ``capacity`` allows. After an error no stream has been opened.
        """
        old, states = self._read(saved)
        with self._lock:
            return dict(zip(old, self._open(len(old), states), strict=True))

    def push(self, stream: int | Sequence[int] | Array, frame: Frame | Array) -> None:
        """Adds a frame to a stream: the inputs of one call of the model, by name, or one array if
        the model has one input.

        ``stream``: an id, or ids on one axis. With ids, each array has one more axis 0, with one
        row for each id. An array without this axis is the same for all ids. An id that occurs twice
        gets two frames, in this order.

        Raises `ShapeError` for a frame that does not fit the model, and `UnsupportedError` for a
        kind of frame that the model cannot run row by row. Raises `BudgetError` if more than
        ``queue`` frames of a stream would wait: call `pull` more often, or push less. After an
        error no frame of the call is taken.
        """
        ids, is_one = _list_ids(stream)
        frames = self._check_frames(frame, None if is_one else len(ids))
        with self._lock:
            self._push(ids, frames)

    @overload
    def pull(self, stream: int) -> list[dict[str, Array]]: ...
    @overload
    def pull(self, stream: Sequence[int] | Array) -> dict[str, Array]: ...
    def pull(
        self, stream: int | Sequence[int] | Array
    ) -> list[dict[str, Array]] | dict[str, Array]:
        """Returns all results of a stream that were not pulled yet, in order, one for each frame.

        With ids on one axis, returns the next result of each stream, as one row of each output. An
        id that occurs twice gets its next two results. A result has all outputs except the states,
        or the states if the model has no other outputs.

        Runs the ticks that the results need; each tick takes the oldest frame of every stream that
        has a waiting frame. A frame that the model refuses is left out, and the state stays as it
        was. `pull` of one stream raises the model's error after the results of earlier frames have
        been pulled. With ids it raises `FrameError`, which names the streams of refused frames.
        With ids, it raises `ShapeError` if a stream has fewer results, or if results differ in
        shape. All remaining results can still be pulled after any error.
        """
        ids, is_one = _list_ids(stream)
        with self._lock:
            self._check(ids)
            return self._pull_all(ids[0]) if is_one else self._pull_next(ids)

    def tick(self) -> int:
        """Runs the oldest frame of every stream that has a waiting frame; returns the number of
        these streams.
        """
        with self._lock:
            return self._tick()

    def _check(self, streams: Sequence[int]) -> None:
        self._store()
        if not self._rows.keys() >= {*streams}:
            closed = next(stream for stream in streams if stream not in self._rows)
            raise ShapeError(f"stream {closed} is not open: expected an id that open() returned")

    def _open(self, count: int, states: Mapping[str, Sequence[Array] | Array]) -> list[int]:
        """Opens ``count`` streams, or none of them if it raises an error. ``states``: the states by
        name, one per stream.
        """
        self._store()
        if len(self._rows) + count > self._capacity:
            raise BudgetError(
                f"streams: expected at most {self._capacity}, got {len(self._rows)} open streams"
                f" and {count} more; close one, or pass a larger capacity to streams()"
            )
        rows = [self._free.pop() for _ in range(min(count, len(self._free)))]
        rows += itertools.islice(self._new, count - len(rows))
        if len(rows) < count:  # interrupted calls took rows without opening streams
            unused = {*range(self._capacity)}.difference(self._rows.values(), rows)
            rows += itertools.islice(unused, count - len(rows))
        for name, array in self._states.items():
            if count:
                array[rows] = states[name]
        ids = [*itertools.islice(self._ids, count)]
        for at, stream in enumerate(ids):
            self._own[stream] = {name: states[name][at] for name in self._growing}
            self._waiting[stream], self._done[stream] = [], []
        self._rows.update(zip(ids, rows, strict=True))
        return ids

    def _read(self, saved: bytes) -> tuple[list[int], dict[str, list[Array]]]:
        return read_states(saved, self._digest, self._first, self._growing)

    @cached_property
    def _growing(self) -> dict[str, Counts]:
        return {
            value.name: value.shape or ()
            for value in self._graph.inputs
            if value.name in self._first and value.name not in self._states
        }

    @cached_property
    def _digest(self) -> str:
        graph = self._graph
        return digest((graph.inputs, graph.outputs, graph.nodes, dict(graph.constants), self._next))

    def _check_frames(self, frame: Frame | Array, count: int | None) -> _Frames:
        """Returns a copy of ``count`` frames. If ``count`` is None, ``frame`` is one frame, and its
        arrays have no axis of frames.
        """
        if not isinstance(frame, Mapping):
            if len(self._inputs) != 1:
                names = ", ".join(value.name for value in self._inputs)
                got = type(frame).__name__
                raise ShapeError(f"frame: expected a dict with arrays for {names}, got {got}")
            frame = {self._inputs[0].name: frame}
        inputs = self._inputs
        if count is not None:
            wide = self._wide
            if wide is None or wide[0] != count:
                self._wide = wide = count, tuple(with_rows(value, count) for value in inputs)
            _, inputs = wide
            frame = {**frame}
            for value in self._inputs:
                given = frame.get(value.name)
                if given is None or isinstance(given, Ragged):
                    continue
                frame[value.name] = array = as_array(given, f"input {value.name!r}")
                if array.ndim == len(value.shape or ()):
                    frame[value.name] = np.broadcast_to(array, (count, *array.shape))
                elif value.shape is None and len(array) != count:
                    raise ShapeError(
                        f"input {value}: expected a row for each of {count} ids, got {array.shape}"
                    )
        arrays = {
            name: np.array(data_of(value), order="C")  # the caller may reuse its own array
            for name, value in check_feed(inputs, frame).items()
        }
        if count is None:
            arrays = {name: array[None] for name, array in arrays.items()}
        shapes = tuple([array.shape[1:] for array in arrays.values()])
        numbers = [arrays[name] for name in self._alike]
        rows = 1 if count is None else count
        if not numbers or (rows > 1 and all((each == each[0]).all() for each in numbers)):
            return _Frames(arrays, [(shapes, tuple([int(each[0]) for each in numbers]))] * rows)
        each_row = zip(*(each.tolist() for each in numbers), strict=True)
        return _Frames(arrays, [(shapes, each) for each in each_row])

    def _push(self, ids: list[int], frames: _Frames) -> None:
        self._check(ids)
        waiting = dict[int, list[_Entry]]()
        for row, each in enumerate(ids):
            waiting[each] = [*(waiting.get(each) or self._waiting[each]), (frames, row)]
        if full := [each for each, entries in waiting.items() if len(entries) > self._most]:
            raise BudgetError(
                f"stream {full[0]}: expected at most {self._most} frames that wait, and"
                f" {len(self._waiting[full[0]])} wait already; pull results, push fewer frames, or"
                " pass a larger queue= to streams()"
            )
        if self._whole is None and not self._growing:
            for kind in {*frames.kinds}:
                self._runner(kind, frames, frames.kinds.index(kind))
        self._made = _Made(waiting=waiting)
        self._store()

    def _pull_all(self, stream: int) -> list[dict[str, Array]]:
        while True:
            done = self._done[stream]
            found = list[dict[str, Array]]()
            for result in done:
                if isinstance(result, OnernnError):
                    self._done[stream] = done[max(1, len(found)) :]
                    if found:
                        return found
                    raise result
                rows, index = result
                found.append({name: array[index].copy() for name, array in rows.arrays.items()})
            if not self._waiting[stream]:
                self._done[stream] = []
                return found
            self._tick([stream])

    def _pull_next(self, ids: list[int]) -> dict[str, Array]:
        counts, done = Counter(ids), self._done
        while lacking := [stream for stream, count in counts.items() if len(done[stream]) < count]:
            if ended := [stream for stream in lacking if not self._waiting[stream]]:
                raise ShapeError(
                    f"stream {ended[0]}: expected at most {len(done[ended[0]])} ids, one per frame,"
                    f" got {counts[ended[0]]}; push frames first; nothing is pulled"
                )
            self._tick(counts)
        if len(counts) == len(ids):
            taken = [done[stream][0] for stream in ids]
        else:
            rests = {stream: iter(done[stream]) for stream in counts}
            taken = [next(rests[stream]) for stream in ids]
        entries = [each for each in taken if not isinstance(each, OnernnError)]
        if len(entries) < len(ids):
            errors = dict[int, OnernnError]()
            for stream, each in zip(ids, taken, strict=True):
                if isinstance(each, OnernnError):
                    errors.setdefault(stream, each)
            self._made = _Made(
                done={s: [x for x in done[s] if x is not error] for s, error in errors.items()}
            )
            self._store()
            raise FrameError(errors)
        results = _gather(entries, ids)
        self._made = _Made(done={stream: done[stream][count:] for stream, count in counts.items()})
        self._store()
        return results

    def _tick(self, pulled: Collection[int] = ()) -> int:
        """Runs a tick. ``pulled``: streams that may exceed the limit of results, because the caller
        pulls them next.
        """
        self._store()
        groups: dict[_Kind, list[int]] = {}
        last, group = None, list[int]()
        for stream in self._rows:
            waiting = self._waiting[stream]
            if waiting and (len(self._done[stream]) < self._most or stream in pulled):
                kind = self._kind(stream, *waiting[0])
                if kind is not last:  # successive streams often have the same kind: saves a look-up
                    last, group = kind, groups.setdefault(kind, [])
                group.append(stream)
        for streams in groups.values():
            self._run(streams)
        return sum(map(len, groups.values()))

    def _kind(self, stream: int, frames: _Frames, row: int) -> _Kind:
        kind = frames.kinds[row]
        if self._growing:
            shapes, numbers = kind
            kind = (*shapes, *(array.shape for array in self._own[stream].values())), numbers
        return kind

    def _runner(self, kind: _Kind, frames: _Frames, row: int, own: Frame | None = None) -> Session:
        """Returns the session for a kind of frames.

        ``frames``, ``row``: a frame of this kind. ``own``: the growing states of its stream.

        Raises `UnsupportedError` naming the operator that mixes streams, or `ShapeError` with the
        sizes that a frame may have.
        """
        if self._whole:
            return self._whole
        if kind not in self._of_kinds:
            if len(self._of_kinds) == _KINDS:
                del self._of_kinds[next(iter(self._of_kinds))]
            arrays = {**self._first, **(own or {})}
            arrays |= {name: array[row] for name, array in frames.arrays.items()}
            known = {name: arrays.pop(name) for name in self._alike}
            declared = {n: Value(n, a.dtype.name, a.shape) for n, a in arrays.items()}
            try:
                runner = self._session.with_graph(self._bind(known, declared), rows_apart=True)
                self._of_kinds[kind] = runner
            except UnsupportedError as error:
                self._of_kinds[kind] = self._name_sizes(known, declared) or error
        result = self._of_kinds[kind]
        if isinstance(result, OnernnError):
            raise result.with_traceback(None)
        return result

    def _bind(self, known: Mapping[str, Array], declared: Mapping[str, Value]) -> Graph:
        return over_streams(fuse(bind(self._graph, known, declared)).model)

    def _name_sizes(
        self, known: Mapping[str, Array], declared: Mapping[str, Value]
    ) -> ShapeError | None:
        """Returns an error that says which size of one axis would let the frame run, None if no
        change of one axis suffices.

        The search takes a second, so it runs at most `_KINDS` times.
        """
        self._searches += 1
        if self._searches > _KINDS:
            return None
        for value in self._inputs:
            got = declared.get(value.name)
            for axis, size in reversed([*enumerate(value.shape or ())]):
                if size is not None or got is None or got.shape is None:
                    continue

                def fits(size: int, got: Value = got, axis: int = axis) -> bool:
                    sizes = [*(got.shape or ())]
                    sizes[axis] = size
                    changed = {**declared, got.name: replace(got, shape=(*sizes,))}
                    with suppress(OnernnError):
                        return bool(self._bind(known, changed))
                    return False

                if sizes := find_sizes(fits):
                    least, most = sizes
                    alike = ", ".join(f"{name} = {int(each)}" for name, each in known.items())
                    runs = f"{least}" + f" to {most}" * (most > least)
                    return ShapeError(
                        f"input {value}: expected a frame of {runs} on axis {axis}"
                        + f" with {alike}" * bool(alike)
                        + f", got {got.dtype} {got.shape}"
                    )
        return None

    def _run(self, streams: list[int]) -> None:
        count = len(streams)
        batch = streams
        if self._rounds:
            batch = streams + streams[-1:] * (min(_round_batch(count), self._capacity) - count)
        entries = [self._waiting[stream][0] for stream in batch]
        results: list[_Entry | OnernnError]
        rows = [self._rows[stream] for stream in batch]
        own = [self._own[stream] for stream in batch] if self._growing else [_NONE]
        try:
            frames, row = entries[0]
            runner = self._runner(self._kind(streams[0], frames, row), frames, row, own[0])
            feed = {n: a for n, a in _gather(entries, batch).items() if n not in self._alike}
            feed |= {name: array[rows] for name, array in self._states.items()}
            feed |= {name: np.stack([each[name] for each in own]) for name in own[0]}
            result = {name: data_of(value) for name, value in runner.run(feed).items()}
            states = {name: self._state(name, result[after]) for name, after in self._next.items()}
        except OnernnError as error:
            if count > 1:  # runs the frames one by one, to find those that cause the error
                for stream in streams:
                    self._run([stream])
                return
            arrays, _ = entries[0]
            sizes = [
                a.shape[1 + self._time[n]] for n, a in arrays.arrays.items() if n in self._time
            ]
            if sizes and min(sizes) < self._least:
                error = ShapeError(
                    f"frame of {min(sizes)} steps: expected {self._least} or more in the first"
                    f" frame of a stream, 1 or more in later frames: {error}"
                )
            states, results = {}, [error]
        else:
            others = [name for name in result if name not in self._next.values()]
            made = _Frames({name: result[name] for name in others or result})
            results = [(made, index) for index in range(count)]
        self._made = _Made(
            {n: (rows[:count], array[:count]) for n, array in states.items() if n in self._states},
            {
                stream: {name: states[name][index].copy() for name in own[index]}
                for index, stream in enumerate(streams)
                if states and own[index]
            }
            if self._growing
            else {},
            {stream: self._waiting[stream][1:] for stream in streams},
            {stream: [*self._done[stream], results[at]] for at, stream in enumerate(streams)},
        )
        self._store()

    def _store(self) -> None:
        """Applies the changes that ``_made`` holds.

        Every call begins with this method, and repeating it has no effect. So if an interrupt ends
        a call, no frame is lost, and no frame runs twice.
        """
        if self._made is None:
            return
        for name, (rows, array) in self._made.states.items():
            self._states[name][rows] = array
        self._own.update(self._made.own)
        self._waiting.update(self._made.waiting)
        self._done.update(self._made.done)
        self._made = None

    def _state(self, name: str, made: Array) -> Array:
        first = self._first[name]
        same = made.shape[1:] == first.shape or (
            name not in self._states and made.ndim == 1 + first.ndim
        )
        if not same or not np.can_cast(made.dtype, first.dtype, "same_kind"):
            raise ShapeError(
                f"state {name!r}: expected {first.dtype} {first.shape}, got {made.dtype}"
                f" {made.shape[1:]} from the frame; pass first= for a different batch"
            )
        return made.astype(first.dtype, copy=False)


_Kind = tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]
"""A kind of frames (see `Streams`): the shapes of the arrays, and the integers on which branches
may depend.
"""


@dataclass(frozen=True, eq=False)
class _Frames:
    """Frames that came in one call, or the results of a tick: each array has one row per frame.

    ``kinds``: the kind of each frame.
    """

    arrays: dict[str, Array]
    kinds: list[_Kind] = field(default_factory=list)


_Entry = tuple[_Frames, int]
"""One frame or result: the arrays, and its row in them."""


class _Made(NamedTuple):
    """The changes that a call will make to the attributes ``_states``, ``_own``, ``_waiting`` and
    ``_done`` of `Streams`.
    """

    states: Mapping[str, tuple[list[int], Array]] = NOTHING
    own: Mapping[int, dict[str, Array]] = NOTHING
    waiting: Mapping[int, list[_Entry]] = NOTHING
    done: Mapping[int, list[_Entry | OnernnError]] = NOTHING


def _list_ids(streams: int | Sequence[int] | Array) -> tuple[list[int], bool]:
    if type(streams) is int:
        return [streams], True
    ids = as_array(streams, "streams")
    if ids.ndim > 1 or (ids.dtype.kind not in "iu" and ids.size):
        raise ShapeError(f"streams: expected an id or ids on one axis, got {ids.dtype} {ids.shape}")
    return ids.reshape(-1).tolist(), not ids.ndim


def _gather(entries: list[_Entry], streams: list[int]) -> dict[str, Array]:
    """Returns arrays with one row for each frame or result in ``entries``. Raises `ShapeError` for
    different shapes.
    """
    if not entries:
        return {}
    first, _ = entries[0]
    if len({id(frames) for frames, _ in entries}) == 1:
        index = [row for _, row in entries]
        is_whole = all(index == [*range(len(array))] for array in first.arrays.values())
        return first.arrays if is_whole else {n: a[index] for n, a in first.arrays.items()}
    result = {}
    for name, array in first.arrays.items():
        for stream, (frames, _) in zip(streams, entries, strict=True):
            if frames.arrays[name].shape[1:] != array.shape[1:]:
                raise ShapeError(
                    f"{name!r}: expected results of one shape, got {array.shape[1:]} for stream"
                    f" {streams[0]} and {frames.arrays[name].shape[1:]} for stream {stream}; pull"
                    " them in separate calls; nothing is pulled"
                )
        result[name] = np.stack([frames.arrays[name][row] for frames, row in entries])
    return result


def _settle(graph: Graph, value: Value) -> Value:
    """Returns the input with a number in place of each open size for which the model's operators
    require this number.
    """
    if value.shape is None:
        return value
    counts = graph.types[value.name].counts
    sizes = zip(value.shape, counts, strict=True)
    return replace(value, shape=tuple(own if size is None else size for own, size in sizes))


def _round_batch(count: int) -> int:
    """Returns ``count`` rounded up to one of eight batch sizes per power of two: oneDNN keeps
    primitives for each size.
    """
    unit = 1 << max(0, count.bit_length() - 4)
    return -(-count // unit) * unit


def over_streams(graph: Graph) -> Graph:
    """Returns the model that runs a batch of streams, along axis 0 of every input and output."""
    mapper = Mapper.of(graph, graph.inputs)
    for node in graph.nodes:
        mapper.add(node)
    fixed = [value.name for value in graph.outputs if value.name not in mapper.mapped]
    if fixed:
        raise UnsupportedError(
            f"{graph.name} as streams:",
            (Refusal("expected an output that depends on an input", fixed[0]),),
        )
    return mapper.model()
