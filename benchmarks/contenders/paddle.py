"""PaddlePaddle's inference predictor over LoD batches; its GRU has reset before the product.

Modes of layers: "unfused" runs mul, elementwise_add and gru or lstm as saved. "native" runs
fusion_gru or fusion_lstm on Paddle's own kernel, and "batched" does so with use_seq=False. "onednn"
runs the same operator on Paddle's oneDNN kernel, which pads. "onernn" runs the unfused program with
onernn's plug-in. Whole models: "default" has Paddle's default settings; "onednn" adds use_mkldnn.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.models import Feed, Model, in_turn
from benchmarks.tasks import Array, Numbers, Prepared, Takes, Task

PACKAGES = ("paddle",)
MODES = {
    "unfused": Takes("ragged dense paddle", "f32", "gru lstm"),
    "default": Takes("paddle"),
    "native": Takes("ragged dense", "f32", "gru lstm"),
    "batched": Takes("ragged dense", "f32", "gru lstm"),
    "onednn": Takes("ragged dense paddle", "f32 bf16", "gru lstm"),
    "onernn": Takes("ragged dense paddle", "f32 bf16", "gru lstm"),
}
FUSED = ("native", "batched", "onednn")
ORDER = {"gru": (0, 1, 2), "lstm": (2, 0, 1, 3)}  # u r c; c i f o
_ASIDE = {  # outputs that an operator needs in addition to Hidden
    "gru": "BatchGate BatchResetHiddenPrev BatchHidden",
    "lstm": "Cell BatchGate BatchCellPreAct",
    "fusion_gru": "ReorderedH0 XX BatchedInput BatchedOut",
    "fusion_lstm": "Cell XX BatchedInput BatchedHidden BatchedCell ReorderedH0 ReorderedC0"
    " CheckedCell",
}


def _imported() -> Any:
    # Paddle 2.6.2 has its own zlib: loading Python's zlib after Paddle crashes.
    import zlib  # noqa: F401

    import numpy.random  # noqa: F401
    import paddle

    return paddle


def versions() -> dict[str, str]:
    return {"paddle": _imported().__version__}


def prepare(task: Task | Model, mode: str) -> Prepared:
    paddle = _imported()
    if isinstance(task, Model):
        folder = Path(task.path)
        files = [*folder.glob("*.pdmodel"), *folder.glob("*.pdiparams")]
        return _whole(task, _predictor(task, mode, *(files or [folder])))
    numbers = Numbers(task)
    with tempfile.TemporaryDirectory() as folder:
        model = str(Path(folder) / "model")
        fused = {"use_seq": mode != "batched"} if mode in FUSED else None
        _Program(paddle, task, numbers, fused).save(model)
        predictor = _predictor(task, mode, f"{model}.pdmodel", f"{model}.pdiparams")
    x = predictor.get_input_handle(predictor.get_input_names()[0])
    x.copy_from_cpu(numbers.words)
    x.set_lod([[0, *np.cumsum(task.lengths).tolist()]])
    y = predictor.get_output_handle(predictor.get_output_names()[0])
    return Prepared(predictor.run, lambda _: y.copy_to_cpu())


def _predictor(task: Task | Model, mode: str, *files: Path | str) -> Any:
    from paddle import inference

    config = inference.Config(*map(str, files))
    config.disable_glog_info()
    config.set_cpu_math_library_num_threads(task.threads)
    config.switch_ir_optim(mode in ("onednn", "default"))
    if mode == "onednn":
        config.enable_mkldnn()
        if task.dtype == "bf16":
            config.enable_mkldnn_bfloat16()
    if mode == "onernn":
        from onernn.adapters.paddle import optimize

        optimize(config, dtype=task.dtype, threads=task.threads)
    return inference.create_predictor(config)


def _whole(model: Model, predictor: Any) -> Prepared:
    inputs = {name: predictor.get_input_handle(name) for name in predictor.get_input_names()}
    outputs = [predictor.get_output_handle(name) for name in predictor.get_output_names()]

    def run(feed: Feed) -> list[Array]:
        for name, handle in inputs.items():
            array, offsets = feed[name] if isinstance(feed[name], tuple) else (feed[name], None)
            handle.copy_from_cpu(array)
            if offsets is not None:
                handle.set_lod([offsets.tolist()])
        predictor.run()
        return [handle.copy_to_cpu() for handle in outputs]

    return in_turn(model, run)


class _Program:
    """The stack as a saved program of Paddle 2, with one operator per layer and direction.

    ``fused``: attributes of the fused operator; None if the program has none.
    """

    def __init__(
        self, paddle: Any, task: Task, numbers: Numbers, fused: Mapping[str, Any] | None
    ) -> None:
        paddle.enable_static()
        self._paddle, self._task, self._fused = paddle, task, fused
        self._main, self._startup = paddle.static.Program(), paddle.static.Program()
        self._scope = paddle.static.Scope()
        with paddle.static.program_guard(self._main, self._startup):
            self._block = self._main.global_block()
            self._x = y = paddle.static.data("x", [-1, task.input_size], "float32", lod_level=1)
            for layer in range(task.layers):
                sides = [
                    self._side(y, numbers.rows(ORDER[task.cell], layer, d), backwards=d == 1)
                    for d in range(task.directions)
                ]
                y = sides[0] if len(sides) == 1 else self._op("concat", {"X": sides}, axis=1)
        self._y = y

    def save(self, prefix: str) -> None:
        static = self._paddle.static
        executor = static.Executor(self._paddle.CPUPlace())
        with static.scope_guard(self._scope):
            executor.run(self._startup)
            # The default clip_extra=True drops attributes that gru needs.
            static.save_inference_model(
                prefix, [self._x], [self._y], executor, program=self._main, clip_extra=False
            )

    def _side(self, x: Any, rows: tuple[Array, ...], *, backwards: bool) -> Any:
        w, u, b, _ = (np.ascontiguousarray(array.T) for array in rows)
        width, cell = self._task.hidden_size, self._task.cell
        if cell == "gru":
            # Paddle's u is 1 minus oneDNN's u, and 1 - sigmoid(a) = sigmoid(-a): the weights of u
            # change their sign. origin_mode would do the same, but Paddle's native fused kernel
            # ignores it.
            for array in (w, u, b):
                array[..., :width] *= -1
            blocks = (u[:, : 2 * width], u[:, 2 * width :])  # one after the other in memory
            u = np.concatenate([block.reshape(-1) for block in blocks]).reshape(u.shape)
        attributes: dict[str, Any] = {"is_reverse": backwards, "use_peepholes": False}
        if cell == "gru":
            attributes = {"is_reverse": backwards, "origin_mode": False}
        weights = self._parameter(u)
        if self._fused is not None:
            inputs = {"X": x, "WeightX": self._parameter(w), "WeightH": weights}
            inputs["Bias"] = self._parameter(b[None])
            return self._op(f"fusion_{cell}", inputs, "Hidden", **attributes, **self._fused)
        factors = {"X": x, "Y": self._parameter(w)}
        product = self._op("mul", factors, x_num_col_dims=1, y_num_col_dims=1)
        inputs = {"Input": product, "Weight": weights}
        if cell == "gru":
            terms = {"X": product, "Y": self._parameter(b)}
            inputs["Input"] = self._op("elementwise_add", terms, axis=1)
        else:
            inputs["Bias"] = self._parameter(b[None])
        return self._op(cell, inputs, "Hidden", **attributes)

    def _parameter(self, array: Array) -> Any:
        assign = self._paddle.nn.initializer.Assign(array)
        return self._paddle.static.create_parameter(
            list(array.shape), "float32", default_initializer=assign
        )

    def _op(
        self, kind: str, inputs: Mapping[str, Any], gives: str = "Out", **attributes: Any
    ) -> Any:
        slots = {
            slot: value if isinstance(value, list) else [value] for slot, value in inputs.items()
        }
        names = [gives, *_ASIDE.get(kind, "").split()]
        outputs = {name: [self._block.create_var(dtype="float32")] for name in names}
        self._block.append_op(type=kind, inputs=slots, outputs=outputs, attrs=attributes)
        return outputs[gives][0]
