"""Records: dataclasses that are made fast, computed once, and pickled as their fields.

`dataclasses.dataclass` up to Python 3.12 takes 40 ms of CPU time for the records of a first run.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError, fields
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from onernn.ir.arrays import seal

__all__ = ["Immutable", "cached_property", "dataclass"]

if TYPE_CHECKING or sys.version_info >= (3, 13):
    from dataclasses import dataclass
else:

    def dataclass(cls=None, /, *, frozen=False, eq=True, kw_only=False):
        """As in dataclasses; `replace`, `fields` and pickle work on its classes."""

        def decorate(cls):
            own = vars(cls).copy()
            if cls.__doc__ is None:  # else dataclasses inspects the signature for one
                cls.__doc__ = cls.__name__
            cls = dataclasses.dataclass(cls, init=False, repr=False, eq=False, kw_only=kw_only)
            methods = {"__init__": _init(cls), "__repr__": _repr}
            if eq:
                methods |= _comparison(cls, frozen)
            if frozen:
                methods |= {"__setattr__": _refuse, "__delattr__": _refuse}
            for name, method in methods.items():
                if name not in own:
                    setattr(cls, name, method)
            return cls

        return decorate if cls is None else decorate(cls)


def _init(cls: Any) -> Any:
    """``__init__``; it writes into the instance's dictionary, as ``__setattr__`` may refuse."""
    scope: dict[str, Any] = {"__missing": MISSING}  # no field has a name that begins so
    positional, named, body = ["self"], ["*"], ["__dict__ = self.__dict__"]
    for field in fields(cls):
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
    return init


def _comparison(cls: Any, frozen: bool) -> dict[str, Callable[..., Any] | None]:
    names = [field.name for field in fields(cls) if field.compare]
    values: Callable[[Any], Any] = attrgetter(*names)
    hashed = attrgetter(*(f.name for f in fields(cls) if f.compare and f.hash is not False))

    def __eq__(self: Any, other: object) -> Any:
        return values(self) == values(other) if type(other) is type(self) else NotImplemented

    def __hash__(self: Any) -> int:
        return hash(hashed(self))

    return {"__eq__": __eq__, "__hash__": __hash__ if frozen else None}


def _repr(self: Any) -> str:
    shown = [f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if f.repr]
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _refuse(self: Any, name: str, *_: Any) -> None:
    raise FrozenInstanceError(f"cannot change field {name!r}")


# Properties that are computed once.

if TYPE_CHECKING:
    from functools import cached_property
else:

    class cached_property:  # noqa: N801 - its name elsewhere
        """As `functools.cached_property` from Python 3.12 on: without a lock.

        The lock of 3.11 is one for all objects: where another thread holds it at a fork, the child
        waits for it forever. Two threads at once may compute the same value twice.
        """

        def __init__(self, compute):
            self._compute, self.__doc__ = compute, compute.__doc__

        def __set_name__(self, owner, name):
            self._name = name

        def __get__(self, instance, owner=None):
            if instance is None:
                return self
            return instance.__dict__.setdefault(self._name, self._compute(instance))


# Records that travel between processes: only their fields, read-only again on arrival.


class Immutable:
    """A frozen record whose arrays and mappings do not change.

    A pickle holds its fields, not what was derived from them. From protocol 5 on arrays are
    out-of-band buffers, and stay in these: nothing is copied on arrival, nor checked again. An
    array that several records share stays one. A copy, also a deep one, is the record itself.
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
        return seal(np.asarray(value))  # a subclass may be one that is mapped from a file
    if type(value) is dict:
        return MappingProxyType({name: _read_only(each) for name, each in value.items()})
    return value
