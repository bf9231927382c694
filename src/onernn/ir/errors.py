"""The errors of the package, how other exceptions become one of them, and how names are shown."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from onernn.ir.records import dataclass


def printable(text: object, keep: str = "") -> str:
    """Text that a file may have brought along, for a terminal: harmless, and on one line.

    Control characters, marks that turn the direction of writing and whatever else cannot be seen
    come out as escapes (``\\x1b``, ``\\u202e``, ``\\n``), but for the characters to ``keep``.
    """
    return "".join(
        each if each.isprintable() or each in keep else each.encode("unicode_escape").decode()
        for each in str(text)
    )


def message_of(error: Exception) -> str:
    """Returns what an error says: the system's words behind the file, without the number they
    bear.
    """
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """ "; did you mean 'onednn'?" behind a message about an unknown name, "" where none is like it.

    Letters may be missing, wrong or swapped, and be of another case.
    """
    from difflib import get_close_matches  # only where something went wrong already

    lower = {each.lower(): each for each in reversed(list(known))}
    result = get_close_matches(name.lower(), lower, n=1)
    return f"; did you mean {lower[result[0]]!r}?" if result else ""


@dataclass(frozen=True)
class Refusal:
    """Why something was not done: a pass that did not fire, a node that cannot run."""

    reason: str
    where: str = ""

    def __str__(self) -> str:
        return printable(f"{self.where}: {self.reason}" if self.where else self.reason)


class OnernnError(Exception):
    """Base of all errors raised on purpose; the message is `printable`."""

    _keep = ""

    def __init__(self, message: object = "") -> None:
        super().__init__(printable(message, self._keep))

    def __reduce__(self) -> Any:
        """Pickled with its text, which is printable already, and its fields."""
        return _raised_elsewhere, (type(self), self.args), self.__dict__


def _raised_elsewhere(kind: type[OnernnError], args: tuple[Any, ...]) -> OnernnError:
    error = kind(*args)
    error.args = args
    return error


class ModelFormatError(OnernnError):
    """A file is not what it claims to be; names the file and, where known, the byte offset."""

    def __init__(self, reason: str, file: str | Path = "", offset: int | None = None) -> None:
        self.file, self.offset = str(file), offset
        place = f"{file}: " if file else ""
        at = "" if offset is None else f" (at byte {offset})"
        super().__init__(f"{place}{reason}{at}")


class ShapeError(OnernnError, ValueError):
    """An array's rank, shape or dtype is not the one its role asks for."""


class BudgetError(OnernnError, MemoryError):
    """More memory is asked for than may be taken; says for what, and how much is allowed."""


class UnsupportedError(OnernnError):
    """Something valid that cannot be run exactly; ``refusals`` say what and where.

    Each of them is a line behind the message.
    """

    def __init__(self, message: str, refusals: Iterable[Refusal] = ()) -> None:
        super().__init__(message)
        listed = tuple(refusals)
        self.refusals = listed or (Refusal(message),)
        self.args = ("".join([*self.args, *(f"\n  {each}" for each in listed)]),)

    @property
    def refusal(self) -> Refusal:
        return self.refusals[0]


class MissingDependencyError(OnernnError, ImportError):
    """An optional package is needed and absent; the message says what to install."""


class LibraryError(OnernnError):
    """libdnnl cannot be found, loaded or used, or one of its calls failed."""

    _keep = "\n"  # between a compiler's messages


class UnforeseenError(OnernnError):
    """An unexpected exception, with the file and node where it arose."""


# The one place in which other exceptions become an `OnernnError`: a model's bytes decide what is
# computed.
#
# With ONERNN_RAISE in the environment, as in the tests, they are raised as they are.

MISFITS = (ValueError, IndexError, TypeError, ArithmeticError)
"""What NumPy raises for arrays and numbers that do not fit each other."""


def unforeseen(error: Exception, where: object) -> UnforeseenError:
    """Returns the exception as an `UnforeseenError`, or raised as it is where ONERNN_RAISE is
    set.
    """
    if os.environ.get("ONERNN_RAISE"):
        raise error
    match error:
        case MemoryError():
            reason = "it needs more memory than there is"
        case RecursionError():
            reason = "it is nested too deep"
        case _:
            reason = f"{type(error).__name__}: {error}; nobody foresaw it, please report it"
    return UnforeseenError(f"{where}: {reason}")


@contextmanager
def guard(where: Callable[[], object]) -> Iterator[None]:
    """Exceptions of neither the package nor the disk become an `UnforeseenError` at ``where()``.

    Guards stand in each other: the inner one names the node, the outer one the file.
    """
    try:
        yield
    except UnforeseenError as error:
        raise UnforeseenError(f"{where()}: {error}") from error.__cause__
    except (OnernnError, OSError):  # what a disk or a folder says has nothing to do with bytes
        raise
    except Exception as error:
        raise unforeseen(error, where()) from error


@contextmanager
def naming(node: Any, file: str = "") -> Iterator[None]:
    """Errors raised inside name the node; what does not fit is a `ShapeError`."""
    try:
        yield
    except OnernnError as error:
        error.args = (f"{node.label}: {error}", *error.args[1:])
        raise
    except MISFITS as error:
        raise ShapeError(f"{node.label}: {error}") from error
    except Exception as error:
        raise unforeseen(error, f"{file}: {node.label}" if file else node.label) from error
