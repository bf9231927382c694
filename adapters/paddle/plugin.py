"""Replaces recurrent layers in static programs, paddle.inference and paddle.nn of a running Paddle.

Functions import Paddle when they are called, because this module must also import without Paddle.
See design/0015.
"""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import tempfile
import zlib  # noqa: F401
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache, partial, wraps
from inspect import unwrap
from pathlib import Path
from typing import Any, Unpack

from onernn.adapters.common.live import NOT_SEEN, Explained, SessionOptions, Slower
from onernn.adapters.common.plugins import DISABLED, plugins_enabled
from onernn.adapters.paddle import messages
from onernn.adapters.paddle.custom_operators import (
    HOST,
    Replaced,
    import_paddle,
    is_pir,
    log_replaced,
    replace_recurrent,
    restore_recurrent,
)
from onernn.adapters.paddle.live_layer import (
    explain_layer,
    optimize_layer,
    restore_layer,
    view,
)
from onernn.adapters.paddle.partition import (
    LivePart,
    LiveProgram,
    Options,
    call_key,
    restore_operators,
)
from onernn.adapters.paddle.program_parts import REPLACED, calls_of
from onernn.adapters.paddle.read import Files, Variable, combine, find, read_program
from onernn.ir.arrays import Array
from onernn.ir.errors import Refusal, UnsupportedError

# Paddle 2.6.2 contains its own zlib, and Python's zlib crashes if it is imported after Paddle. The
# import of zlib above prevents this. numpy.random must not be imported here, because NumPy 2.4 uses
# zlib to import it.


_log = logging.getLogger("onernn")


def optimize(
    target: Any,
    scope: Any = None,
    *,
    fetch_list: Iterable[Any] = (),
    frozen: bool = False,
    **options: Unpack[SessionOptions],
) -> Any:
    """Makes onernn run the recurrent layers of ``target``. Paddle runs everything else.

    ``target`` is one of these:

    - a paddle.static.Program of Paddle 3 (PIR), for inference or training, before or after
      minimize(). The operators ``rnn`` are replaced in place, because callers fetch values of this
      program object. Returns the same program. ``fetch_list`` is needed only if the direct result
      of a time-major layer may be fetched.
    - a paddle.static.Program of Paddle 2 for inference. ``scope`` holds its parameters (None:
      Paddle's global scope). Returns a copy, in which one operator replaces each recurrent operator
      and the projections around it. If the program has no fetch operators, ``fetch_list`` must name
      the variables to fetch. Variables inside a replaced part cannot be fetched.
    - a paddle.inference.Config that names the file of a program and the file of its parameters, or
      their folder. Returns the same Config.
    - a paddle.nn.Layer. All SimpleRNN, LSTM and GRU layers in it are replaced in place at any
      depth, and so are RNN and BiRNN of Paddle's cells. They keep their parameters. Returns the
      same layer. Paddle keeps running layers that onernn cannot train, which is logged.
    - the result of paddle.jit.load of Paddle 3. The object's programs are changed in place. Returns
      the same object.

    The attribute ``replaced`` of a program lists the parts that onernn runs. The attribute
    ``refusals`` says why Paddle runs the other recurrent operators.

    Parameters may change at any time, because each call reads them. For a program of Paddle 2,
    onernn keeps the weights that it computed from the parameters. Each call therefore checks
    whether the parameters have changed, which takes longer than a large layer over a few steps.
    ``frozen``: whether the parameters of a program never change. Calls may then ignore later
    changes.

    ``options``: ``dtype``, ``backend`` and ``threads``, as `onernn.Session` describes. If
    ``threads`` is None, onernn uses the current number of a Config. For other targets it uses
    OMP_NUM_THREADS, which Paddle sets to 1 if it is not set. The logger "onernn" lists the layers
    that were replaced and those that were not.

    Raises `UnsupportedError` if nothing can be replaced, and `MissingDependencyError` without
    Paddle.

    >>> import paddle
    >>> from onernn.adapters.paddle import optimize
    >>> layer = optimize(paddle.nn.GRU(2, 3))
    >>> y, state = layer(paddle.ones([1, 4, 2]))
    >>> y.shape
    [1, 4, 3]
    """
    paddle = import_paddle()
    chosen = Options(**options)
    if frozen and isinstance(target, paddle.nn.Layer):
        raise UnsupportedError(
            "frozen=True: expected False for a paddle.nn.Layer, whose parameters may change"
        )
    if not plugins_enabled():
        _log.info("%s", DISABLED)
        if not (is_pir(target) or isinstance(target, paddle.static.Program)):
            return target
        result = target if is_pir(target) else target.clone()
        result.replaced, result.refusals = (), (Refusal(DISABLED, "program"),)
        return result
    if is_pir(target):
        done = replace_recurrent(target, chosen, [*fetch_list], fixed=frozen)
        target.replaced, target.refusals = done.explained
        return target
    if isinstance(target, paddle.static.Program):
        return _optimize_program(target, scope, fetch_list, chosen, frozen)
    if isinstance(target, paddle.inference.Config):
        threads = chosen.threads or max(1, target.cpu_math_library_num_threads())
        return _optimize_config(target, replace(chosen, threads=threads))
    if type(target).__name__ in ("PirTranslatedLayer", "TranslatedLayer"):
        return _optimize_translated(target, chosen, frozen)
    if isinstance(target, paddle.nn.Layer):
        return optimize_layer(target, chosen)
    raise TypeError(
        "expected a paddle.static.Program, paddle.inference.Config or paddle.nn.Layer, got"
        f" {type(target).__qualname__}"
    )


def explain(target: Any) -> str:
    """Returns one line for each recurrent layer. The line names onernn's kernel, or the reason why
    Paddle runs the layer.

    ``target``: a result of `optimize`, which is a paddle.nn.Layer or a program.

    >>> import paddle
    >>> from onernn.adapters.paddle import explain, optimize
    >>> layer = optimize(paddle.nn.GRU(2, 3))
    >>> len(explain(layer).splitlines())
    1
    """
    if hasattr(target, "refusals"):
        done = Explained(target.replaced, target.refusals)
    elif isinstance(target, import_paddle().nn.Layer):
        done = explain_layer(target)
    else:
        done = Explained((), (Refusal(NOT_SEEN, "program"),))
    return done.text(HOST) or "no recurrent layers"


def restore(target: Any) -> Any:
    """Restores Paddle's own layers and operators in a result of `optimize`, and returns it. For a
    program of Paddle 2 or its clone(), returns a restored copy.

    Raises `UnsupportedError` if a PIR program trains a layer in an inner block.

    >>> import paddle
    >>> from onernn.adapters.paddle import optimize, restore
    >>> layer = optimize(paddle.nn.GRU(2, 3))
    >>> restore(layer) is layer
    True
    """
    paddle = import_paddle()
    if (program := _restore_program(target)) is not target:
        return program
    if is_pir(target):
        restore_recurrent(target)
        target.replaced = target.refusals = ()
    elif isinstance(target, paddle.inference.Config):
        if files := _ORIGINALS.get(_files(target)):
            _make_config(target, files)
    elif type(target).__name__ == "PirTranslatedLayer":
        for each in target._program_holder_dict.values():
            _exchange(each, restore_recurrent(each.infer_program))
        target.replaced = target.refusals = ()
        target._partial_program_layers.clear()
    elif not isinstance(target, paddle.static.Program):
        restore_layer(target)
    return target


def _optimize_program(
    program: Any, scope: Any, fetch_list: Iterable[Any], chosen: Options, frozen: bool
) -> Any:
    parameters = partial(_parameters, scope or import_paddle().static.global_scope())
    names = [each if isinstance(each, str) else each.name for each in fetch_list]
    data = program.desc.serialize_to_string()
    data, done = _rewrite(LiveProgram(data, parameters, names), chosen, constant=frozen)
    result = _parse(data, program)
    result.replaced, result.refusals = done
    _save_originals()
    return result


def _restore_program(program: Any) -> Any:
    """Returns a copy of the program with Paddle's own operators. Returns the program itself if
    onernn runs no part of it.
    """
    if isinstance(program, import_paddle().static.Program) and hasattr(program, "desc"):
        data = restore_operators(program.desc.serialize_to_string(), REPLACED)
        if data is not None:
            return _parse(data, program)
    return program


def _parse(data: bytes, like: Any) -> Any:
    """Returns the deserialized program, whose parameters have the same properties as in the program
    ``like``.
    """
    result = import_paddle().static.Program.parse_from_string(data)
    result._copy_param_info_from(like)
    return result


@cache
def _save_originals() -> None:
    """Makes Paddle's save functions restore Paddle's operators first, because onernn's operators
    work only in this process.
    """
    paddle = import_paddle()
    static = paddle.static
    normalize = static.io.normalize_program

    @wraps(normalize)
    def normalize_original(program: Any, feeds: Any, fetches: Any, *more: Any, **named: Any) -> Any:
        original = _restore_program(program)
        if original is not program:
            var, flatten = original.global_block().var, paddle.utils.flatten
            feeds, fetches = (
                [var(each.name) for each in flatten(values)] for values in (feeds, fetches)
            )
        return normalize(original, feeds, fetches, *more, **named)

    def restore_before(save: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(save)
        def save_original(target: Any, *more: Any, **named: Any) -> Any:
            return save(_restore_program(target), *more, **named)

        return save_original

    static.normalize_program = static.io.normalize_program = normalize_original
    static.save = static.io.save = restore_before(static.io.save)
    paddle.save = paddle.framework.io.save = restore_before(paddle.save)


def _optimize_translated(target: Any, chosen: Options, frozen: bool) -> Any:
    programs = target._program_holder_dict.values()
    if not all(is_pir(getattr(each, "infer_program", None)) for each in programs):
        raise UnsupportedError(
            "expected a program of PIR from paddle.jit.load, got Paddle 2's format; optimize the"
            " paddle.inference.Config of its files, or the paddle.nn.Layer from which it was saved"
        )
    replaced: list[str] = []
    refusals: list[Refusal] = []
    for each in programs:
        try:
            done = replace_recurrent(each.infer_program, chosen, all_known=True, fixed=frozen)
        except UnsupportedError as error:
            refusals += error.refusals
            continue
        _exchange(each, done)
        replaced += done.explained.replaced
        refusals += done.explained.refusals
    if not replaced and not any(isinstance(each, Slower) for each in refusals):
        raise UnsupportedError("no recurrent operator can be replaced", refusals)
    target.replaced, target.refusals = tuple(replaced), tuple(refusals)
    target._partial_program_layers.clear()  # made from the unchanged programs
    return target


def _exchange(holder: Any, done: Replaced) -> None:
    """Replaces the output values of a program of paddle.jit.load by their new values."""
    holder._output_vars = [done.value(value) for value in holder._output_vars]


_ORIGINALS: dict[Files, Files] = {}
"""The original files of a Config, by the files that `optimize` wrote in their place."""


def _optimize_config(config: Any, chosen: Options) -> Any:
    files = _files(config)
    files = _ORIGINALS.get(files, files)
    changed = Path(tempfile.mkdtemp(dir=_folder()), f"model{files.model.suffix}")
    params = files.params
    if files.model.suffix == ".json":
        _write_pir(files, changed, chosen)
    else:
        parameters = read_program(*files).parameters
        live = LiveProgram(files.model.read_bytes(), lambda _: parameters, file=files.model)
        changed.write_bytes(_rewrite(live, chosen, constant=True)[0])
        if params.is_dir():
            params = changed.with_suffix(".pdiparams")
            params.write_bytes(combine(files))
    _ORIGINALS[Files(changed, params)] = files
    return _make_config(config, Files(changed, params))


def _make_config(config: Any, files: Files) -> Any:
    config.set_model("")  # a folder would take precedence
    config.set_model(*map(str, [files.params] if files.params.is_dir() else files))
    return config


def _files(config: Any) -> Files:
    """Returns the files that a Config names directly or by their folder."""
    if not config.model_from_memory():
        if folder := config.model_dir():
            return find(folder)
        named = Path(config.prog_file()), Path(config.params_file())
        if all(each.is_file() for each in named):
            return Files(*named)
    raise UnsupportedError(
        "the Config names no files of program and parameters: make it as"
        " paddle.inference.Config('NAME.pdmodel', 'NAME.pdiparams'), with 'NAME.json' for Paddle 3"
    )


def _write_pir(files: Files, changed: Path, chosen: Options) -> None:
    """Writes a program of Paddle 3 in which onernn's operators replace recurrent operators."""
    paddle = import_paddle()
    if not paddle.get_flags("FLAGS_enable_pir_api")["FLAGS_enable_pir_api"]:
        raise UnsupportedError(
            f"{files.model}: FLAGS_enable_pir_api=0: expected 1 for a program of PIR; unset it"
        )
    program = paddle.pir.Program()
    paddle.base.core.deserialize_pir_program(str(files.model), program)
    replace_recurrent(program, chosen, all_known=True, fixed=True)
    unwrap(paddle.base.core.serialize_pir_program)(program, str(changed), True, False, True)


@cache
def _folder() -> str:
    """Returns the temporary folder of changed programs. This process removes it at its end, but
    forked child processes do not.
    """
    folder, process = tempfile.mkdtemp(prefix="onernn-"), os.getpid()

    def remove() -> None:
        if os.getpid() == process:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder


def _rewrite(
    live: LiveProgram, chosen: Options, *, constant: bool = False
) -> tuple[bytes, Explained]:
    """Returns the serialized program in which onernn runs parts, one line for each of these parts,
    and the reasons why others were not replaced.
    """
    candidates, refusals = live.parts()
    parts, replaced = {}, []
    for part in candidates:
        runner = LivePart(part, chosen, constant=constant)
        try:
            session = runner.session(part.depths, live.arrays(part.parameters))
        except UnsupportedError as error:
            refusals.append(Refusal("; ".join(r.reason for r in error.refusals), part.label))
            continue
        parts[part] = calls_of(runner, session)
        REPLACED[call_key(parts[part][0])] = live.original(part)
        layers = session.explained
        kernels = "; ".join(f"{e.cell} {e.direction}, {e.dtype}, {e.kernel}" for e in layers)
        replaced.append(f"{part.label}: {kernels}")
    done = log_replaced(replaced, refusals)
    return live.rewrite(parts), done


def _parameters(scope: Any, variables: Iterable[Variable]) -> Mapping[str, Array]:
    """Returns the initialized parameters of a scope by name, without a copy."""
    result = {}
    for variable in variables:
        if variable.persistable and variable.kind == messages.LOD_TENSOR:
            value = scope.find_var(variable.name)
            if value is not None and value.get_tensor()._is_initialized():
                array = view(value.get_tensor(), variable.name)
                array.flags.writeable = False  # so that reading does not copy them
                result[variable.name] = array
    return result
