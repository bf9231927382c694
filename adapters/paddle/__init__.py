"""The adapter of Paddle. It reads saved models without Paddle, and runs layers in Paddle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onernn.adapters.common.adapter import Adapter, Plugin, Runtime, StrPath, Writer, defer

if TYPE_CHECKING:
    from onernn.adapters.common.fault import FaultyModel


if TYPE_CHECKING:  # so that type checkers see the signatures
    from onernn.adapters.paddle.plugin import explain as explain
    from onernn.adapters.paddle.plugin import optimize as optimize
    from onernn.adapters.paddle.plugin import restore as restore
else:

    def __getattr__(name: str) -> Any:
        """Imports ``explain``, ``optimize`` or ``restore`` at its first use. Reading a model does
        not need these functions.
        """
        if name in ("explain", "optimize", "restore"):
            from onernn.adapters.paddle import plugin

            return getattr(plugin, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _find_faults(path: StrPath, params: StrPath | None, rules: Any = None) -> FaultyModel[Any]:
    from onernn.adapters.paddle.faults import find_faults
    from onernn.adapters.paddle.lower import read_caller_rules
    from onernn.adapters.paddle.read import read_program

    return find_faults(read_program(path, params), read_caller_rules(rules))


def _plugin(path: str) -> Plugin:
    from onernn.adapters.paddle.partition import RECURRENT

    call = f"paddle.optimize(paddle.inference.Config({path!r}, PARAMETERS))"
    return Plugin(call=call, host="Paddle", replaces=RECURRENT)


_SAVE_BOTH = (
    "parameters of Paddle without a model; save the model with them in Paddle:"
    " paddle.jit.save(layer, 'model', input_spec=[...])"
)

ADAPTER = Adapter(
    name="Paddle",
    files="a Paddle folder, .pdmodel, __model__, or .json of Paddle 3",
    reads=lambda path: True,
    load=defer("paddle.lower.load_paddle"),
    no_models={
        ".pdiparams": "only parameters of Paddle: load NAME.pdmodel, with this file as params",
        **dict.fromkeys((".pdparams", ".pdopt"), _SAVE_BOTH),
    },
    writer=Writer(
        suffix=".pdmodel",
        write=defer("paddle.write.write_paddle"),
        options={"place": "cpu", "fused": None},
    ),
    runtime=Runtime(
        name="paddle",
        packages=("paddlepaddle", "paddlepaddle-gpu"),
        extra="paddle",
        run=defer("paddle.run_model.run_model"),
    ),
    find_faults=_find_faults,
    plugin=_plugin,
    pass_name=defer("paddle.operators.pass_name"),
)
