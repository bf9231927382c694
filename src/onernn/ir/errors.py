"""The errors of onernn, the conversion of other exceptions, and the display of names."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from onernn.ir.records import dataclass


def printable(text: object, keep: str = "") -> str:
    """Returns a text, which may come from a file, in a form that is safe to print on one line.

    Control characters, marks that change the direction of writing and other invisible characters
    become escapes (``\\x1b``, ``\\u202e``, ``\\n``), except the characters in ``keep``.
    """
    shown = str(text)
    if shown.isprintable():
        return shown
    return "".join(
        each if each.isprintable() or each in keep else each.encode("unicode_escape").decode()
        for each in shown
    )


def message_of(error: Exception) -> str:
    """Returns the message of an error; for an `OSError` with a file, the file and the system's
    text.
    """
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns "; did you mean 'onednn'?" for an unknown name, "" if no known name is similar.

    Letters may be missing, wrong, swapped, or in a different case.
    """
    from difflib import get_close_matches  # imported here because it is needed only after an error

    lower = {each.lower(): each for each in reversed(list(known))}
    result = get_close_matches(name.lower(), lower, n=1)
    return f"; did you mean {lower[result[0]]!r}?" if result else ""


@dataclass(frozen=True)
class Refusal:
    """The reason why a pass was not applied, or why a node cannot run.

    >>> str(onernn.Refusal("its weights are computed at run time", "node 'gru_0'"))
    "node 'gru_0': its weights are computed at run time"
    """

    reason: str
    where: str = ""

    def __str__(self) -> str:
        return printable(f"{self.where}: {self.reason}" if self.where else self.reason)


class OnernnError(Exception):
    """The base class of all errors that onernn raises on purpose; messages go through `printable`.

    >>> issubclass(onernn.ShapeError, onernn.OnernnError)
    True
    """

    _keep = ""

    def __init__(self, message: object = "") -> None:
        super().__init__(printable(message, self._keep))

    def __reduce__(self) -> Any:
        return _unpickle_error, (type(self), self.args), self.__dict__


def _unpickle_error(kind: type[OnernnError], args: tuple[Any, ...]) -> OnernnError:
    error = kind(*args)
    error.args = args
    return error


class ModelFormatError(OnernnError):
    """A file does not have the claimed format; the message names the file and, if known, the byte
    offset.

    The attributes ``file`` and ``offset`` are "" and None if unknown.

    >>> onernn.Graph("empty", (), (onernn.Value("y"),), (), {})
    Traceback (most recent call last):
    onernn.ir.errors.ModelFormatError: ...
    """

    def __init__(self, reason: str, file: str | Path = "", offset: int | None = None) -> None:
        self.file, self.offset = str(file), offset
        place = f"{file}: " if file else ""
        at = "" if offset is None else f" (at byte {offset})"
        super().__init__(f"{place}{reason}{at}")


class ShapeError(OnernnError, ValueError):
    """An array's rank, shape or dtype does not fit its role.

    >>> onernn.Ragged.from_lengths(np.zeros((4, 8)), [3, 2])
    Traceback (most recent call last):
    onernn.ir.errors.ShapeError: ...
    """


class BudgetError(OnernnError, MemoryError):
    """The work needs more memory or time than a limit allows; the message names the work and the
    limit.

    >>> x, y = onernn.Value("x", "float32", (None, 2)), onernn.Value("y")
    >>> relu = onernn.Node("Relu", ("x",), ("y",))
    >>> model = onernn.Graph("relu", (x,), (y,), (relu,), {})
    >>> onernn.Session(model, max_bytes=100).run({"x": np.zeros((1000, 2), "f4")})
    Traceback (most recent call last):
    onernn.ir.errors.BudgetError: ...
    """


class UnsupportedError(OnernnError):
    """A valid model or argument cannot be run with exact results; ``refusals`` names the nodes or
    inputs, each with the reason.

    The message has one line for each refusal.

    >>> from onernn.backend import open_backend
    >>> open_backend("kernel")
    Traceback (most recent call last):
    onernn.ir.errors.UnsupportedError: ...
    """

    def __init__(self, message: str, refusals: Iterable[Refusal] = ()) -> None:
        super().__init__(message)
        listed = tuple(refusals)
        self.refusals = listed or (Refusal(message),)
        self.args = ("".join([*self.args, *(f"\n  {each}" for each in listed)]),)

    @property
    def refusal(self) -> Refusal:
        """The first of ``refusals``."""
        return self.refusals[0]


class FrameError(OnernnError):
    """The frames of some streams were refused and left out of a call.

    ``errors`` maps each of these streams to the reason. The results of the other frames are kept
    for the next call.

    >>> error = onernn.FrameError({3: onernn.ShapeError("x: expected (1,), got (2,)")})
    >>> {stream: str(why) for stream, why in error.errors.items()}
    {3: 'x: expected (1,), got (2,)'}
    """

    def __init__(self, errors: Mapping[int, OnernnError]) -> None:
        self.errors = dict(errors)
        few = ", ".join(map(str, [*self.errors][:8])) + ", ..." * (len(self.errors) > 8)
        stream, error = next(iter(self.errors.items()))
        super().__init__(
            f"frames of {len(self.errors)} streams ({few}) were refused and left out; all other"
            f" results wait for the next pull; stream {stream}: {error}"
        )

    def __reduce__(self) -> Any:
        return type(self), (self.errors,)


class MissingDependencyError(OnernnError, ImportError):
    """An optional package is needed and absent; the message says what to install."""


class LibraryError(OnernnError):
    """libdnnl cannot be found, loaded or used, or one of its calls failed."""

    _keep = "\n"  # compilers' messages keep their line breaks


class UnforeseenError(OnernnError):
    """An unexpected exception, with the file and node that caused it."""


# Only the code below turns other exceptions into an `OnernnError`: a damaged model may cause any of
# them. If the environment variable ONERNN_RAISE is set, exceptions are raised unchanged; the tests
# set it.

MISFITS = (ValueError, IndexError, TypeError, ArithmeticError)
"""Exceptions that NumPy raises for arrays whose shapes, dtypes or values a function does not
take.
"""


def unforeseen(error: Exception, where: object) -> UnforeseenError:
    """Returns the exception as an `UnforeseenError`; raises it unchanged if ONERNN_RAISE is set."""
    if os.environ.get("ONERNN_RAISE"):
        raise error
    match error:
        case MemoryError():
            reason = "it needs more memory than there is"
        case RecursionError():
            reason = "it is nested too deeply"
        case _:
            reason = f"{type(error).__name__}: {error}; please report this unexpected error"
    return UnforeseenError(f"{where}: {reason}")


@contextmanager
def guard(where: Callable[[], object]) -> Iterator[None]:
    """Turns exceptions other than `OnernnError` and `OSError` into an `UnforeseenError`;
    ``where()`` begins its message.

    Guards may be nested: the inner guard names the node, the outer guard names the file.
    """
    try:
        yield
    except UnforeseenError as error:
        raise UnforeseenError(f"{where()}: {error}") from error.__cause__
    except (OnernnError, OSError):  # an OSError is not the fault of the content
        raise
    except Exception as error:
        raise unforeseen(error, where()) from error


@contextmanager
def naming(node: Any, file: str = "") -> Iterator[None]:
    """Adds the node's name to errors that the block raises; `MISFITS` become a `ShapeError`."""
    try:
        yield
    except OnernnError as error:
        error.args = (f"{node.label}: {error}", *error.args[1:])
        raise
    except MISFITS as error:
        raise ShapeError(f"{node.label}: {error}") from error
    except Exception as error:
        raise unforeseen(error, f"{file}: {node.label}" if file else node.label) from error
