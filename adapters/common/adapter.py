"""Records that describe a framework: the functions that its folder provides to the registry."""

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
    """The functions that run a model in its own framework, whose results are the reference for
    onernn.

    ``name`` is the NAME in ``verify --against NAME:PATH``. One of ``packages`` must be installed;
    onernn's extra ``extra`` installs it. ``run(path, params, feed)`` returns the outputs in order.
    ``run`` is called in a separate process, and ``params`` is "" if the model has no file of
    parameters. ``load(path, rules=)`` returns the model with all declared sizes, including sizes
    that the framework enforces but onernn does not. ``run_live(model, feed)`` runs a model that is
    an object of the framework.
    """

    name: str
    packages: tuple[str, ...]
    extra: str
    run: Callable[[str, str, Mapping[str, Batch]], list[Batch]]
    load: Callable[..., Graph] | None = None
    run_live: Callable[[Any, Mapping[str, Batch]], list[Batch]] | None = None

    @property
    def version(self) -> str:
        """The version of the installed package, "" if none of the packages is installed."""
        from importlib import metadata

        for package in self.packages:
            try:
                return metadata.version(package)
            except metadata.PackageNotFoundError:
                continue
        return ""


@dataclass(frozen=True, kw_only=True)
class Writer:
    """The functions and options that write files of the framework.

    ``write(model, path, inputs=, progress=, note=, **options)``: ``inputs`` is None or a batch that
    the model runs on, ``note(text)`` is called with each remark for the user. ``options``: the
    names of the other options of ``write``, with their defaults. ``pads``: if the file pads ragged
    values, a function that returns a batch in the padded form; else None. With ``pads``, the
    framework's ``runtime`` checks the file; without it, onernn does.
    """

    suffix: str
    write: Callable[..., None]
    options: Mapping[str, Any]
    pads: Callable[[Mapping[str, Batch]], Mapping[str, Batch]] | None = None
    runtime: Runtime | None = None


@dataclass(frozen=True, kw_only=True)
class Plugin:
    """The call that puts onernn's layers into the framework.

    ``call`` is what the user types after ``onernn.adapters``. ``host`` names the program that runs
    all other operators. ``replaces`` names the framework's operators that onernn runs inside the
    framework.
    """

    call: str
    host: str
    replaces: Collection[str]


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """A framework. A field is None or empty if the framework lacks the feature.

    Every function here imports its modules when it is called, so that making the record and
    importing onernn stay fast.

    ``files``: the files and folders that hold models of the framework, for help texts.
    ``reads(path)``: whether a file holds such a model. ``suffix_of(path)``: the suffix that files
    with this content usually have, even if this file has a different one; "" for content of other
    kinds. ``no_models``: by suffix, advice for the framework's files that are not models; a
    function of the path if the advice depends on the content. ``weights``: by suffix, a function
    that reads named arrays from a file that holds nothing else; it returns None if the file also
    holds a model. ``layers_among(arrays)``: functions that read the recurrent layers whose weights
    have the framework's names in ``arrays``, by the names of their modules; they raise `ShapeError`
    or `UnsupportedError`. ``load(path, params, semantics, rules=)`` lowers a model. ``semantics``:
    the names of the semantics that the framework has besides "documented"; if there are none,
    ``load`` gets no such argument. ``asks_sizes``: whether the framework's operators need sizes
    when they are lowered, so that ``load`` takes ``inputs=``. ``find_faults(path, params, rules=)``
    returns a saved model with the known faults of the framework. ``rules`` are the caller's rules,
    see `caller_rules`. ``no_params``: the reason why the framework's models have no separate file
    of parameters; then ``load`` and ``find_faults`` do not get ``params``. ``plugin(path)``: the
    `Plugin` for a model. ``pass_name(applied)``: the framework's name for a fusion pass that
    changed its operators, "" if the framework has no name for the pass.
    """

    name: str
    files: str
    reads: Callable[[StrPath], bool]
    load: Callable[..., Graph]
    no_params: str = ""
    suffix_of: Callable[[StrPath], str] = lambda _: ""
    no_models: Mapping[str, str | Callable[[StrPath], str]] = field(default_factory=dict)
    weights: Mapping[str, Callable[[StrPath], dict[str, Array] | None]] = field(
        default_factory=dict
    )
    layers_among: Callable[[Mapping[str, Array]], Mapping[str, Callable[[], PivotLayer]]] = (
        lambda _: {}
    )
    semantics: tuple[str, ...] = ()
    asks_sizes: bool = False
    writer: Writer | None = None
    runtime: Runtime | None = None
    find_faults: Callable[..., FaultyModel[Any]] | None = None
    plugin: Callable[[str], Plugin] | None = None
    pass_name: Callable[[Applied], str] = lambda _: ""

    def parts(self, params: StrPath | None) -> tuple[StrPath | None, ...]:
        """Returns the arguments of ``load`` after the model's path: the path of the parameters, or
        nothing.

        Raises `UnsupportedError` if parameters are given to a framework without separate parameter
        files.
        """
        if not self.no_params:
            return (params,)
        if params is not None:
            raise UnsupportedError(f"params: {self.no_params}; leave params out")
        return ()


def defer(name: str) -> Callable[..., Any]:
    """Returns a function that calls a function of `onernn.adapters` by its name in that package.
    The call imports the module.
    """
    module, _, function = f"onernn.adapters.{name}".rpartition(".")
    return lambda *given, **options: getattr(import_module(module), function)(*given, **options)


# Optional packages, imported when they are needed.


def require(module: str, extra: str) -> ModuleType:
    """Returns the module. Raises `MissingDependencyError` with the command that installs it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingDependencyError(
            f"this needs {module.partition('.')[0]!r}; run: pip install 'onernn[{extra}]'"
        ) from error
