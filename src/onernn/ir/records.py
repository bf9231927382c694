"""Dataclasses and named tuples whose definition takes little time, and cached properties.

For the records of a first run, `dataclasses.dataclass` takes 40 ms of CPU time up to Python 3.12,
and `typing.NamedTuple` takes 10 ms.
"""

from __future__ import annotations

import dataclasses
import sys
import warnings
from collections import _tuplegetter  # type: ignore[attr-defined]
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, FrozenInstanceError, fields
from functools import partial
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from onernn.ir.arrays import seal

__all__ = [
    "NOTHING",
    "Immutable",
    "NamedTuple",
    "Renamed",
    "cached_property",
    "dataclass",
    "replace",
    "warn_renamed",
]

NOTHING: Mapping[Any, Any] = MappingProxyType({})
"""An empty mapping, for defaults of parameters."""

if TYPE_CHECKING or sys.version_info >= (3, 13):
    from dataclasses import dataclass
else:

    def dataclass(cls=None, /, *, frozen=False, eq=True, kw_only=False):
        """Makes a class a dataclass; `replace`, `fields` and pickle work on it."""

        def decorate(cls):
            own = vars(cls).copy()
            given = {name: own[name] for name in own.get("__annotations__", ()) if name in own}
            for name, value in given.items():
                if isinstance(value, dataclasses.Field):
                    delattr(cls, name)
                    if value.default is not MISSING:
                        setattr(cls, name, value.default)
            if cls.__doc__ is None:
                cls.__doc__ = cls.__name__
            complete = partial(_complete, cls, own, given, eq, frozen, kw_only)
            late = [*_FROM_FIELDS, "__init__"]
            methods = {"__repr__": _repr}
            if eq:
                late += ["__eq__", "__hash__"] if frozen else ["__eq__"]
                methods |= {} if frozen else {"__hash__": None}
            if frozen:
                methods |= {"__setattr__": _refuse, "__delattr__": _refuse}
            methods |= {name: _Late(name, cls, complete) for name in late}
            for name, method in methods.items():
                if name not in own:
                    setattr(cls, name, method)
            return cls

        return decorate if cls is None else decorate(cls)


_FROM_FIELDS = ("__dataclass_fields__", "__dataclass_params__", "__match_args__")


class _Late:
    """A descriptor that makes an attribute of a class, such as ``__eq__``, at its first use,
    because a run uses few of them.
    """

    def __init__(self, name: str, cls: Any, complete: Callable[[], None]) -> None:
        self._name, self._class, self._complete = name, cls, complete

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        self._complete()
        result = vars(self._class)[self._name]
        return result.__get__(instance, owner) if callable(result) else result


def _complete(
    cls: Any, own: dict[str, Any], given: dict[str, Any], eq: bool, frozen: bool, kw_only: bool
) -> None:
    """Adds the methods that a dataclass gets for its fields. Two threads may call this function at
    the same time.

    ``own``: the attributes that the class itself defines; ``given``: the defaults of its fields.
    """
    bare: Any = type(cls.__name__, (), {**{n: own[n] for n in _READ if n in own}, **given})
    bare = dataclasses.dataclass(bare, init=False, repr=False, eq=False, kw_only=kw_only)
    bases = (getattr(base, "__dataclass_fields__", {}) for base in cls.__mro__[:0:-1])
    made = {name: field for inherited in bases for name, field in inherited.items()}
    made |= bare.__dataclass_fields__
    matched = tuple(f.name for f in made.values() if not f.kw_only)
    late = dict(zip(_FROM_FIELDS, (made, bare.__dataclass_params__, matched), strict=True))
    late["__init__"] = _init(cls, made.values())
    if eq:
        late |= _comparison(made.values(), frozen)
    for name, value in late.items():
        if name not in own:
            setattr(cls, name, value)


_READ = ("__annotations__", "__module__", "__doc__")


class _Factory:
    def __repr__(self) -> str:
        return "<factory>"


_FACTORY = _Factory()


def _init(cls: Any, shown: Collection[Any]) -> Any:
    """Returns an ``__init__`` that writes into ``self.__dict__``, because ``__setattr__`` of frozen
    records raises an error.
    """
    scope: dict[str, Any] = {"__missing": _FACTORY}  # no field's name begins with two underscores
    positional, named, body = ["self"], ["*"], ["__dict__ = self.__dict__"]
    for field in shown:
        name, parameter, value = field.name, field.name, field.name
        if field.default is not MISSING:
            scope[f"__{name}"], parameter = field.default, f"{name}=__{name}"
        elif field.default_factory is not MISSING:
            scope[f"__{name}"], parameter = field.default_factory, f"{name}=__missing"
            value = f"__{name}() if {name} is __missing else {name}"
        (named if field.kw_only else positional).append(parameter)
        body.append(f"__dict__[{name!r}] = {value}")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    parameters = ", ".join(positional + named if named[1:] else positional)
    exec(f"def __init__({parameters}):\n " + "\n ".join(body), scope)
    init = scope["__init__"]
    init.__qualname__, init.__module__ = f"{cls.__qualname__}.__init__", cls.__module__
    init.__annotations__ = {field.name: field.type for field in shown} | {"return": None}
    return init


def _comparison(shown: Collection[Any], frozen: bool) -> dict[str, Callable[..., Any] | None]:
    names = [field.name for field in shown if field.compare]
    values: Callable[[Any], Any] = attrgetter(*names)
    hashed = attrgetter(*(f.name for f in shown if f.compare and f.hash is not False))

    def __eq__(self: Any, other: object) -> Any:
        return values(self) == values(other) if type(other) is type(self) else NotImplemented

    def __hash__(self: Any) -> int:
        return hash(hashed(self))

    return {"__eq__": __eq__, "__hash__": __hash__} if frozen else {"__eq__": __eq__}


def _repr(self: Any) -> str:
    shown = [f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if f.repr]
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _refuse(self: Any, name: str, *_: Any) -> None:
    raise FrozenInstanceError(f"cannot change field {name!r}")


if TYPE_CHECKING:
    from dataclasses import replace
else:

    def replace(record, /, **changes):
        """Returns a record with changed fields, like `dataclasses.replace`, but faster."""
        values = record.__dict__
        return type(record)(**{n: values[n] for n in record.__dataclass_fields__} | changes)


# Named tuples.

if TYPE_CHECKING:
    from typing import NamedTuple
else:

    class _Methods:
        def _asdict(self):
            return dict(zip(self._fields, self, strict=True))

        def _replace(self, /, **changes):
            return type(self)(**self._asdict() | changes)

        @classmethod
        def _make(cls, values):
            return cls(*values)

        def __getnewargs__(self):
            return tuple(self)

        def __repr__(self):
            shown = [f"{name}={value!r}" for name, value in self._asdict().items()]
            return f"{type(self).__name__}({', '.join(shown)})"

    _NAMES = ("_asdict", "_replace", "_make", "__getnewargs__", "__repr__")
    _METHODS = {name: vars(_Methods)[name] for name in _NAMES}

    class _LateNew:
        """A descriptor that compiles a class's ``__new__`` at the first use."""

        def __get__(self, instance, cls):
            values = ", ".join(cls._fields) + ","
            new = eval(f"lambda _cls, {values}: _new(_cls, ({values}))", {"_new": tuple.__new__})
            new.__name__, new.__qualname__ = "__new__", f"{cls.__qualname__}.__new__"
            new.__module__, new.__annotations__ = cls.__module__, cls.__annotations__
            new.__defaults__ = tuple(cls._field_defaults.values())
            cls.__new__ = staticmethod(new)
            return new

    class _Named(type):
        def __new__(cls, name, bases, inside):
            fields = inside.get("__annotations__", {})
            defaults = {field: inside[field] for field in fields if field in inside}
            getters = {field: _tuplegetter(at, "") for at, field in enumerate(fields)}
            own = {"_fields": (*fields,), "__match_args__": (*fields,), "__slots__": ()}
            own |= {"_field_defaults": defaults, "__new__": _LateNew()}
            return type(name, (tuple,), {**_METHODS, **inside, **getters, **own})

    NamedTuple = type.__new__(_Named, "NamedTuple", (), {})
    """As `typing.NamedTuple`, which compiles texts for each class and each of its annotations."""


# Properties that are computed once.

if TYPE_CHECKING:
    from functools import cached_property
else:

    class cached_property:  # noqa: N801 - its name in functools
        """Works like `functools.cached_property` from Python 3.12 on: without a lock.

        Python 3.11 has one lock for all objects: if another thread holds the lock at a fork, the
        child process waits forever. If two threads read the property at the same time, both may
        compute its value.
        """

        def __init__(self, compute):
            self._compute, self.__doc__ = compute, compute.__doc__

        def __set_name__(self, owner, name):
            self._name = name

        def __get__(self, instance, owner=None):
            if instance is None:
                return self
            return instance.__dict__.setdefault(self._name, self._compute(instance))


# Records that processes send to each other: a pickle has only the fields, and arrays are read-only
# again after unpickling.


class Immutable:
    """A frozen record whose arrays and mappings do not change.

    A pickle holds the fields, not cached properties. From protocol 5 on, arrays are out-of-band
    buffers, which the receiver neither copies nor checks. An array that several records share
    remains one array. A copy, even a deep copy, is the record itself.
    """

    def __getstate__(self) -> dict[str, Any]:
        named = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        return {n: dict(v) if isinstance(v, MappingProxyType) else v for n, v in named.items()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({name: _read_only(value) for name, value in state.items()})

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self


def _read_only(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return seal(np.asarray(value))  # an array of a subclass may be mapped from a file
    if type(value) is dict:
        return MappingProxyType({name: _read_only(each) for name, each in value.items()})
    return value


# Old public names, which a later version will remove.


def warn_renamed(old: str, new: str) -> None:
    """Warns that a public name has changed. The warning points to the line that uses the old
    name.
    """
    text = f"{old} is {new} now; version 0.3 removes the old name"
    warnings.warn(text, DeprecationWarning, stacklevel=3)


class Renamed:
    """A descriptor for the old name of a method, which warns and returns the method."""

    def __init__(self, new: str) -> None:
        self._new = new

    def __set_name__(self, owner: type, name: str) -> None:
        self._old = name

    def __get__(self, instance: Any, owner: type) -> Any:
        warn_renamed(f"{owner.__name__}.{self._old}", f"{owner.__name__}.{self._new}")
        return getattr(owner if instance is None else instance, self._new)
