"""The one place in which foreign errors become ours: a model's bytes decide what is computed.

With ONERNN_RAISE in the environment, as in our own tests, they come out as they are.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from onernn.ir.errors import OnernnError, ShapeError, UnforeseenError
from onernn.ir.graph import Node

MISFITS = (ValueError, IndexError, TypeError, ArithmeticError)
"""What NumPy raises for arrays and numbers that do not fit each other."""


def unforeseen(error: Exception, where: object) -> UnforeseenError:
    """The error as one of ours, or raised as it is where ONERNN_RAISE is set."""
    if os.environ.get("ONERNN_RAISE"):
        raise error
    match error:
        case MemoryError():
            told = "it needs more memory than there is"
        case RecursionError():
            told = "it is nested too deep"
        case _:
            told = f"{type(error).__name__}: {error}; nobody foresaw it, please report it"
    return UnforeseenError(f"{where}: {told}")


@contextmanager
def guarded(where: Callable[[], object]) -> Iterator[None]:
    """What neither we nor the disk raised becomes an `UnforeseenError` beginning with ``where()``.

    Guards stand in each other: the inner one tells the node, the outer one the file.
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
def naming(node: Node, file: str = "") -> Iterator[None]:
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
