"""The package's dataclasses: what they do is what those of dataclasses do."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import threading
import typing
from concurrent.futures import ThreadPoolExecutor
from dataclasses import KW_ONLY, FrozenInstanceError, field, fields, replace
from typing import Any, get_type_hints

import pytest
from support.interpreters import run_python

from onernn.ir import records


def declared(dataclass: Any, **options: Any) -> Any:
    """A class with all that fields may be."""

    @dataclass(**options)
    class Declared:
        """Fields of every kind; two have names that a generated ``__init__`` may use itself."""

        size: int
        names: tuple[str, ...] = ()
        _: KW_ONLY
        held: list[int] = field(default_factory=list, hash=False)
        note: str = field(default="", repr=False, compare=False)
        known: int = 5
        MISSING: tuple[int, ...] = field(default_factory=tuple)

        def __post_init__(self) -> None:
            if self.size < 0:
                raise ValueError("negative")
            object.__setattr__(self, "names", tuple(self.names))

        @property
        def double(self) -> int:
            return 2 * self.size

    return Declared


OPTIONS = [
    {"frozen": frozen, "eq": eq, "kw_only": named}
    for frozen in (True, False)
    for eq in (True, False)
    for named in (True, False)
]
CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((1,), {}),
    ((1, ["a", "b"]), {}),
    ((), {"size": 3, "names": ("x",), "held": [4], "note": "n"}),
    ((1,), {"held": []}),
    ((), {}),
    ((1, (), 3), {}),
    ((1,), {"size": 1}),
    ((1,), {"other": 1}),
    ((-1,), {}),
]


def seen(cls: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """All that a caller can observe of one object."""
    try:
        one, other = cls(*args, **named), cls(*args, **named)
    except (TypeError, ValueError) as error:
        return type(error), str(error)
    told: list[Any] = [repr(one), one == other, one == 1, one.double, one.held is other.held]
    told += [vars(one), [f.name for f in fields(one)], vars(replace(one, size=7))]
    told += [one == replace(one, note="other"), vars(copy.deepcopy(one))]
    plain, alike = replace(one, held=()), replace(other, held=())
    for act in (
        lambda: setattr(one, "size", 2),
        lambda: delattr(one, "note"),
        lambda: setattr(one, "unknown", 2),
        lambda: hash(one) == hash(other),
        lambda: hash(plain) == hash(alike),
    ):
        try:
            told.append(act())
        except (FrozenInstanceError, TypeError, AttributeError) as error:
            told.append(type(error))
    return told


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("call", CALLS)
def test_objects_are_as_those_of_dataclasses(
    options: dict[str, bool], call: tuple[tuple[Any, ...], dict[str, Any]]
) -> None:
    ours, theirs = (declared(m.dataclass, **options) for m in (records, dataclasses))
    assert seen(ours, *call) == seen(theirs, *call)
    parameters = [inspect.signature(each).parameters for each in (ours, theirs)]
    assert [[(p.name, p.kind) for p in each.values()] for each in parameters][0] == [
        (p.name, p.kind) for p in parameters[1].values()
    ]


def test_what_a_class_defines_itself_stays() -> None:
    @records.dataclass(frozen=True)
    class Own:
        size: int

        def __eq__(self, other: object) -> bool:
            return False

        def __hash__(self) -> int:
            return 5

        def __repr__(self) -> str:
            return "own"

    assert Own(1) != Own(1) and hash(Own(1)) == 5 and repr(Own(1)) == "own"


@records.dataclass(frozen=True)
class Base:
    size: int = 1


@records.dataclass(frozen=True)
class Derived(Base):
    more: str = "m"


def test_fields_are_inherited_and_objects_are_pickled() -> None:
    assert Derived(2) == Derived(2, "m") != Derived(2, "n") and Base(2) != Derived(2)
    assert pickle.loads(pickle.dumps(Derived(3))) == Derived(3)


def test_every_room_makes_its_dataclasses_so() -> None:
    code = (
        "import dataclasses\n"
        "made, known = [], dataclasses.dataclass\n"
        "def watched(cls=None, **options):\n"
        "    if cls is not None: made.append((cls.__module__, options))\n"
        "    return known(cls, **options)\n"
        "dataclasses.dataclass = watched\n"
        "import onernn, onernn.verification.verifying, onernn.engine.plan\n"
        "import onernn.engine.emit.pipeline\n"
        "import onernn.adapters.onnx.lower, onernn.adapters.paddle.lower, onernn.backend.auto\n"
        "import onernn.adapters.mxnet.lower\n"
        "print(0 < len(made) < 40, [name for name, o in made if o.get('init') is not False])"
    )
    done = run_python("-c", code)
    assert done.stdout.split(None, 1) == ["True", "[]\n"]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize(
    "read",
    [
        dataclasses.is_dataclass,
        lambda cls: cls.__match_args__,
        lambda cls: [f.name for f in fields(cls)],
        lambda cls: (cls.known, cls.note, hasattr(cls, "held")),
        lambda cls: cls.__doc__,
        lambda cls: object.__new__(cls) == 1,
    ],
)
def test_a_class_without_objects_is_as_that_of_dataclasses(
    options: dict[str, bool], read: Any
) -> None:
    ours, theirs = (declared(m.dataclass, **options) for m in (records, dataclasses))
    assert read(ours) == read(theirs)


def test_several_threads_may_make_the_first_objects() -> None:
    for _ in range(50):
        cls, ready = declared(records.dataclass, frozen=True), threading.Barrier(4)

        def make(cls: Any = cls, ready: Any = ready) -> Any:
            ready.wait()
            return cls(1)

        with ThreadPoolExecutor(4) as pool:
            made = [each.result() for each in [pool.submit(make) for _ in range(4)]]
        assert all(each == cls(1) and each.held == [] for each in made)


def named(base: Any) -> Any:
    """A named tuple with all that fields may be."""

    class Named(base):  # type: ignore[misc]
        """A place."""

        at: int
        names: tuple[str, ...] = ()
        note: str | None = None

        @property
        def double(self) -> int:
            return 2 * self.at

        @classmethod
        def first(cls) -> Any:
            return cls(0)

    return Named


@pytest.mark.parametrize(
    "call",
    [
        lambda cls: (cls(1), cls(1, ("a",)), cls(at=1, note="n"), cls.first(), cls(3).double),
        lambda cls: (repr(cls(1)), cls._fields, cls._field_defaults, cls.__match_args__),
        lambda cls: (cls(1)._replace(at=2), cls(1)._asdict(), cls._make([1, 2, 3])),
        lambda cls: (cls(1) == (1, (), None), cls(1) < cls(2), hash(cls(1)), [*cls(1)], cls(1)[0]),
        lambda cls: (cls.__doc__, cls.__name__, cls.__module__, get_type_hints(cls)),
        lambda cls: [
            (p.name, p.kind, p.default) for p in inspect.signature(cls).parameters.values()
        ],
        lambda cls: cls(),
        lambda cls: cls(1, 2, 3, 4),
        lambda cls: cls(1, other=2),
        lambda cls: cls._make([]),
        lambda cls: cls(1)._replace(other=2),
        lambda cls: setattr(cls(1), "at", 2),
        lambda cls: setattr(cls(1), "unknown", 2),
        lambda cls: copy.deepcopy(cls(1, note="n")),
    ],
)
def test_named_tuples_are_as_those_of_typing(call: Any) -> None:
    seen: list[Any] = []
    for base in (records.NamedTuple, typing.NamedTuple):
        try:
            seen.append(call(named(base)))
        except (TypeError, ValueError, AttributeError) as error:
            seen.append(TypeError if isinstance(error, ValueError) else type(error))
    assert seen[0] == seen[1]


class Placed(records.NamedTuple):
    at: int
    more: str = "m"


def test_named_tuples_are_pickled() -> None:
    again = pickle.loads(pickle.dumps(Placed(2)))
    assert type(again) is Placed and again == Placed(2, "m")
