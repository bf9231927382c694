"""The record of a framework: what its folder can do, for all who ask the registry."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import field
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from onernn.ir.errors import MissingDependencyError, UnsupportedError
from onernn.ir.records import dataclass

if TYPE_CHECKING:
    from onernn.adapters.common.fault import FaultyModel
    from onernn.fuse_passes import Applied
    from onernn.ir.arrays import Array
    from onernn.ir.graph import Graph
    from onernn.ir.ragged import Batch
    from onernn.reorders.layers import PivotLayer

StrPath = str | Path


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """How the framework itself runs a model, as the reference for onernn.

    ``name``: in ``verify --against NAME:PATH``. One of ``packages`` is to be installed, which our
    extra ``extra`` does.
    ``run(path, params, feed)`` gives the outputs in order; it is called in a process of its own,
    and ``params`` is "" where there is none. ``load(path)`` gives the model with the sizes declared
    to which the framework holds, where onernn does not. ``run_live(model, feed)`` runs a live one.
    """

    name: str
    packages: tuple[str, ...]
    extra: str
    run: Callable[[str, str, Mapping[str, Batch]], list[Batch]]
    load: Callable[[StrPath], Graph] | None = None
    run_live: Callable[[Any, Mapping[str, Batch]], list[Batch]] | None = None

    @property
    def version(self) -> str:
        """The installed version, "" where none is."""
        from importlib import metadata

        for package in self.packages:
            try:
                return metadata.version(package)
            except metadata.PackageNotFoundError:
                continue
        return ""


@dataclass(frozen=True, kw_only=True)
class Writer:
    """How files of the framework are written.

    ``write(model, path, inputs=, progress=, note=, **options)``: ``inputs`` is a batch that the
    model runs on or None, ``note`` takes a text for the user. ``options``: the names of its further
    options, with their defaults. For a file that pads ragged values, ``pads`` gives what it takes
    for a batch, and is checked in the framework's ``runtime``; onernn checks other files.
    """

    suffix: str
    write: Callable[..., None]
    options: Mapping[str, Any]
    pads: Callable[[Mapping[str, Batch]], Mapping[str, Batch]] | None = None
    runtime: Runtime | None = None


@dataclass(frozen=True, kw_only=True)
class Plugin:
    """How a user gets our layers inside the framework.

    ``call``: what to type, after ``onernn.adapters``. ``host`` runs all other operators.
    ``replaces``: the framework's operators that onernn runs in it.
    """

    call: str
    host: str
    replaces: Collection[str]


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """A framework. What it lacks is None or empty.

    Every function here imports what it needs when it is called, so that making the record and
    importing onernn cost nothing.

    ``files``: which files and folders are its models, for help. ``reads(path)``: whether one is.
    ``no_models``: by suffix, what to do with its files that are none.
    ``weights``: by suffix, how arrays are read by name from files that hold nothing else; None for
    a file with a model in it. ``layers_among(arrays)``: the recurrent layers, by the names of their
    modules, that arrays bear the framework's names of. ``load(path, params, semantics)`` lowers a
    model. ``semantics``: the names of other meanings of its operators than the documented one;
    without any, ``load`` is not given one. ``find_faults(path, params)``: a saved model with the
    known faults of the framework.
    ``no_params``: why its models have no other file with parameters; then neither is given one.
    ``plugin(path)``: how to run that model inside the framework.
    ``pass_name(applied)``: what the framework calls a pass that fired on its operators, ""
    where it has none.
    """

    name: str
    files: str
    reads: Callable[[StrPath], bool]
    load: Callable[..., Graph]
    no_params: str = ""
    no_models: Mapping[str, str] = field(default_factory=dict)
    weights: Mapping[str, Callable[[StrPath], dict[str, Array] | None]] = field(
        default_factory=dict
    )
    layers_among: Callable[[Mapping[str, Array]], Mapping[str, PivotLayer]] = lambda _: {}
    semantics: tuple[str, ...] = ()
    writer: Writer | None = None
    runtime: Runtime | None = None
    find_faults: Callable[..., FaultyModel[Any]] | None = None
    plugin: Callable[[str], Plugin] | None = None
    pass_name: Callable[[Applied], str] = lambda _: ""

    def parts(self, params: StrPath | None) -> tuple[StrPath | None, ...]:
        """Returns the argument of its functions, behind a model's path, that names the parameters.

        Raises `UnsupportedError` for parameters of a framework that keeps none apart.
        """
        if not self.no_params:
            return (params,)
        if params is not None:
            raise UnsupportedError(f"params: {self.no_params}")
        return ()


def defer(name: str) -> Callable[..., Any]:
    """Returns a function of `onernn.adapters` by its name in there, imported when it is called."""
    module, _, function = f"onernn.adapters.{name}".rpartition(".")
    return lambda *given, **options: getattr(import_module(module), function)(*given, **options)


# Optional packages, imported where they are needed.


def require(module: str, extra: str) -> ModuleType:
    """Returns the module, or `MissingDependencyError` with the command that installs it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingDependencyError(
            f"this needs {module.partition('.')[0]!r}; run: pip install 'onernn[{extra}]'"
        ) from error
