"""Our recurrent layers inside a live Paddle: in static programs, in paddle.inference, in paddle.nn.

Paddle is imported inside: this package must import without it. See design/0015.
"""

from __future__ import annotations

import logging

# Paddle 2.6.2 brings a zlib of its own, and Python's crashes where it is loaded after that. Before
# Paddle this line prevents it. numpy.random must not be imported here: NumPy 2.4 unpacks by zlib.
import zlib  # noqa: F401
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from onernn.adapters.paddle import messages
from onernn.adapters.paddle.live.execution import LivePart, Options
from onernn.adapters.paddle.live.layers import optimized_layer
from onernn.adapters.paddle.live.replaceable_parts import LiveProgram
from onernn.adapters.paddle.live.tensors import batch, tensor_of, view
from onernn.adapters.paddle.read import Variable, read_program
from onernn.adapters.requirements import require
from onernn.core.arrays import Array
from onernn.core.errors import Refusal, UnsupportedError
from onernn.core.plugins import DISABLED, plugins_enabled

_log = logging.getLogger("onernn")
_PIR = (
    "this is a PIR program of Paddle 3, which has no operator that calls Python: set"
    " FLAGS_enable_pir_api=0 in the environment before paddle is imported, or optimize the"
    " paddle.nn.Layer that it is made from"
)


def optimize(
    target: Any, scope: Any = None, *, fetch_list: Iterable[Any] = (), **options: Any
) -> Any:
    """Paddle runs everything but the recurrent layers, which run here.

    ``target``:

    - a paddle.static.Program for inference, its parameters in ``scope`` (paddle's global one, if
      None). A copy is returned, in which recurrent operators with the projections around them are
      one operator each; its ``replaced`` and ``refusals`` tell which, and why not others. Where the
      program has no fetch operators of its own, name in ``fetch_list`` what will be fetched: what
      stands inside of a replaced part cannot be.
    - a paddle.inference.Config of a program's and a parameters' file; it is returned.
    - a paddle.nn.Layer, whose SimpleRNN, LSTM and GRU layers, at any depth, become ours in place
      and keep their parameters; it is returned, too. They train, or stay with Paddle where ours
      cannot, which is logged.

    Parameters may change afterwards. ``options``: dtype, backend, threads, as of `onernn.Session`.
    What is replaced and what is not is also logged (logger "onernn").

    Raises `UnsupportedError` where nothing can be replaced, and for PIR programs;
    `MissingDependencyError` without Paddle.
    """
    paddle = require("paddle", "paddle")
    chosen = Options(**options)
    if not plugins_enabled():
        _log.info("%s", DISABLED)
        if not isinstance(target, paddle.static.Program):
            return target
        made = target.clone()
        made.replaced, made.refusals = (), (Refusal(DISABLED, "program"),)
        return made
    if type(target).__module__.startswith("paddle.base.libpaddle.pir"):
        raise UnsupportedError(_PIR)
    if isinstance(target, paddle.static.Program):
        return _optimized_program(target, scope, fetch_list, chosen)
    if isinstance(target, paddle.inference.Config):
        return _optimized_config(target, chosen)
    if isinstance(target, paddle.nn.Layer):
        return optimized_layer(target, chosen)
    raise TypeError(
        "expected a paddle.static.Program, paddle.inference.Config or paddle.nn.Layer, got"
        f" {type(target).__qualname__}"
    )


def _optimized_program(program: Any, scope: Any, fetch_list: Iterable[Any], chosen: Options) -> Any:
    paddle = require("paddle", "paddle")
    held = partial(_held, scope or paddle.static.global_scope())
    wanted = [each if isinstance(each, str) else each.name for each in fetch_list]
    data = program.desc.serialize_to_string()
    rewritten, replaced, refusals = _rewritten(LiveProgram(data, held, wanted), chosen)
    made = paddle.static.Program.parse_from_string(rewritten)
    made.replaced, made.refusals = replaced, refusals
    return made


def _optimized_config(config: Any, chosen: Options) -> Any:
    named = () if config.model_from_memory() else (config.prog_file(), config.params_file())
    files = [Path(each) for each in named if Path(each).is_file()]
    if len(files) != 2:
        raise UnsupportedError(
            "the Config names no files of program and parameters: make it as"
            " paddle.inference.Config('NAME.pdmodel', 'NAME.pdiparams')"
        )
    model, params = files
    if model.suffix == ".json":
        raise UnsupportedError(f"{model}: {_PIR}")
    parameters = read_program(model, params).parameters
    live = LiveProgram(model.read_bytes(), lambda _: parameters, file=model)
    rewritten, *_ = _rewritten(live, chosen, constant=True)
    numbers = params.read_bytes()
    config.set_model_buffer(rewritten, len(rewritten), numbers, len(numbers))
    return config


def _rewritten(
    live: LiveProgram, chosen: Options, *, constant: bool = False
) -> tuple[bytes, tuple[str, ...], tuple[Refusal, ...]]:
    """(the program, a line for each part that is ours, why others are not)."""
    from paddle.static.nn.common import PyFuncRegistry

    found, refusals = live.parts()
    parts, replaced = {}, []
    for part in found:
        ours = LivePart(part, chosen, constant=constant)
        try:
            explained = ours.session(part.depths, live.arrays(part.parameters)).explained
        except UnsupportedError as error:
            refusals.append(Refusal("; ".join(r.reason for r in error.refusals), part.label))
            continue
        parts[PyFuncRegistry(_callable(ours)).id] = part
        kernels = "; ".join(f"{e.cell} {e.direction}, {e.dtype}, {e.kernel}" for e in explained)
        replaced.append(f"{part.label}: {kernels}")
    for refusal in refusals:
        _log.warning("stays with Paddle: %s", refusal)
    for line in replaced:
        _log.info("%s", line)
    if not parts:
        none = "" if refusals else " it holds none"
        raise UnsupportedError(f"no recurrent operator can be replaced:{none}", refusals)
    backward = PyFuncRegistry(_no_gradients).id
    return live.rewritten(parts, backward), tuple(replaced), tuple(refusals)


def _callable(ours: LivePart) -> Callable[..., list[Any]]:
    """What Paddle calls; it keeps that for as long as the process lives."""
    names, count = (*ours.part.data, *ours.part.parameters), len(ours.part.data)

    def run(*tensors: Any) -> list[Any]:  # default arguments would break PyFuncRegistry
        try:
            data = [batch(*each) for each in zip(tensors[:count], names, strict=False)]
            held = [] if ours.constant else zip(tensors[count:], names[count:], strict=True)
            arrays = [view(*each) for each in held]
            return [tensor_of(output) for output in ours.run(data, arrays)]
        except Exception as error:  # Paddle tells it in the midst of pages of its own
            _log.error("%s: %s: %s", ours.part.label, type(error).__name__, error)
            raise

    return run


def _no_gradients(*_: Any) -> None:
    raise UnsupportedError(
        "no gradients: a program is optimized for inference; train it as it was, or optimize a"
        " paddle.nn.Layer"
    )


def _held(scope: Any, variables: Iterable[Variable]) -> Mapping[str, Array]:
    """The parameters in a scope, without a copy."""
    found = {}
    for variable in variables:
        if variable.persistable and variable.kind == messages.LOD_TENSOR:
            held = scope.find_var(variable.name)
            if held is not None and held.get_tensor()._is_initialized():
                array = view(held.get_tensor(), variable.name)
                array.flags.writeable = False  # then reading them does not copy them
                found[variable.name] = array
    return found
