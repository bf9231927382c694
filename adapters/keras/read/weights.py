"""The weights of layers, as the two kinds of files order them.

A ``.keras`` file has a tree of groups, one for each layer, and in it one for each layer inside. An
``.h5`` file has one list for each layer of the outermost model: what stands inside of it comes one
after the other.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from onernn.core.arrays import Array
from onernn.core.errors import ShapeError, UnsupportedError


class Reader(Protocol):
    """Gives the arrays of one layer, each once."""

    def take(self, names: Sequence[str]) -> list[Array]:
        """The arrays of the layer's own variables, as many as there are names.

        "kernel|depthwise_kernel" is one that is called so or so.
        Raises `ShapeError` where there are others.
        """

    def inside(self, attribute: str) -> Reader:
        """Those of a layer that the layer holds under this name."""

    def finish(self) -> None:
        """Raises `ShapeError` for arrays that nobody took."""


class Weights(Protocol):
    """The weights of a layer. Reading them again begins again."""

    def reader(self) -> Reader: ...

    def inside(self, attribute: str) -> Weights:
        """Those of a layer that the layer holds, where it has none besides."""

    def layers(self, named: Sequence[tuple[str, str]]) -> list[Weights]:
        """Those of a model's layers, given the (class, name) of each, in order."""


class Tree:
    """A group of a ``.keras`` file, and its own reader: nothing in it is read by its order."""

    def __init__(self, arrays: Mapping[str, Array], path: str = "") -> None:
        self._arrays, self._path = arrays, path
        self._left = {
            name for name in arrays if name.startswith(path) and "seed_generator/" not in name
        }

    def reader(self) -> Tree:
        return Tree(self._arrays, self._path)

    def layers(self, named: Sequence[tuple[str, str]]) -> list[Weights]:
        """Groups are called after classes, and numbered."""
        groups = group_names(kind for kind, _ in named)
        return [Tree(self._arrays, f"{self._path}layers/{group}/") for group in groups]

    def take(self, names: Sequence[str]) -> list[Array]:
        own = [f"{self._path}vars/{at}" for at in range(len(names))]
        for name, path in zip(names, own, strict=True):
            if path not in self._arrays:
                raise ShapeError(f"{name}: no {path!r} among the weights")
        self._left -= set(own)
        return [self._arrays[path] for path in own]

    def inside(self, attribute: str) -> Tree:
        inner = Tree(self._arrays, f"{self._path}{attribute}/")
        self._left -= inner._left
        return inner

    def finish(self) -> None:
        _nothing(sorted(self._left))


class Flat:
    """The list of an ``.h5`` file for one layer: (path, array) in the order of the layer."""

    def __init__(self, entries: Sequence[tuple[str, Array]]) -> None:
        self.entries = tuple(entries)

    def reader(self) -> Cursor:
        return Cursor(self)

    def inside(self, attribute: str) -> Flat:
        return self

    def layers(self, named: Sequence[tuple[str, str]]) -> list[Weights]:
        """Layers that are frozen stand behind the others, so paths tell whose an array is."""
        names = [name for _, name in named]
        parts: dict[str, list[tuple[str, Array]]] = {name: [] for name in names}
        for path, array in self.entries:
            owners = [name for name in names if name in path.split("/")[:-1]]
            if len(owners) != 1:
                raise UnsupportedError(f"weight {path!r}: of which of the layers {names} it is")
            parts[owners[0]].append((path, array))
        return [Flat(parts[name]) for name in names]


class Lists:
    """Those of the outermost model of an ``.h5`` file, by the names of its layers."""

    def __init__(self, lists: Mapping[str, Flat]) -> None:
        self._lists = lists

    def reader(self) -> Cursor:
        return Flat(()).reader()

    def inside(self, attribute: str) -> Flat:
        return Flat(())

    def layers(self, named: Sequence[tuple[str, str]]) -> list[Weights]:
        return [self._lists.get(name, Flat(())) for _, name in named]


class Cursor:
    """Goes through a list; what a layer holds goes on where the layer is."""

    def __init__(self, flat: Flat) -> None:
        self._flat, self._at = flat, 0

    def take(self, names: Sequence[str]) -> list[Array]:
        found = self._flat.entries[self._at : self._at + len(names)]
        if len(found) != len(names):
            have = [path for path, _ in self._flat.entries]
            raise ShapeError(f"{', '.join(names)}: missing among the weights {have}")
        for name, (path, _) in zip(names, found, strict=True):
            # Keras 2 writes "kernel:0"; a variable of another name would be another layer's.
            if path.rpartition("/")[2].partition(":")[0] not in name.split("|"):
                raise ShapeError(f"{name}: expected among the weights, got {path!r}")
        self._at += len(names)
        return [array for _, array in found]

    def inside(self, attribute: str) -> _Inner:
        return _Inner(self)

    def finish(self) -> None:
        _nothing([path for path, _ in self._flat.entries[self._at :]])


class _Inner:
    """A part of a list of which only the whole knows where it ends."""

    def __init__(self, outer: Cursor) -> None:
        self._outer = outer
        self.take = outer.take

    def inside(self, attribute: str) -> _Inner:
        return self

    def finish(self) -> None:
        """The outer layer will tell."""


def _nothing(left: Sequence[str]) -> None:
    if left:
        raise ShapeError(f"weights that the layer does not have: {', '.join(left)}")


def group_names(kinds: Iterable[str]) -> list[str]:
    """As Keras calls the groups of objects that one holds: after their classes, numbered."""
    seen: Counter[str] = Counter()
    names = []
    for name in map(_snake_case, kinds):
        names.append(f"{name}_{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return names


def _snake_case(kind: str) -> str:
    kind = re.sub("(.)([A-Z][a-z]+)", r"\1_\2", re.sub(r"\W+", "", kind))
    return re.sub("([a-z])([A-Z])", r"\1_\2", kind).lower()
