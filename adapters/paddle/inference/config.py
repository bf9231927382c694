"""Paddle's options of a `Config` that are no options here: each method's name, and why.

Those of `Config` itself, in `config.py`, are honoured.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Set
from typing import Any

from onernn.adapters.paddle.inference import tensors
from onernn.ir.errors import UnsupportedError

_PASSES = "how Paddle rewrites its graph"
_MEMORY = "how Paddle manages memory"
_LOG = "what Paddle logs"

NO_EFFECT = {
    "delete_pass": _PASSES,
    "disable_gpu": "there is no GPU here",
    "disable_mkldnn_fc_passes": _PASSES,
    "disable_onnxruntime": "which engine Paddle asks",
    "enable_memory_optim": _MEMORY,
    "enable_new_executor": "how Paddle walks its graph",
    "enable_onnxruntime": "which engine Paddle asks",
    "enable_ort_optimization": "which engine Paddle asks",
    "enable_profile": _LOG,
    "exp_disable_mixed_precision_ops": "mixed precision is on GPUs",
    "exp_disable_tensorrt_ops": "there is no TensorRT here",
    "exp_enable_mixed_precision_ops": "mixed precision is on GPUs",
    "set_mkldnn_cache_capacity": _MEMORY,
    "set_mkldnn_op": _PASSES,
    "set_optim_cache_dir": "where Paddle keeps rewritten graphs",
    "switch_ir_debug": _LOG,
    "switch_use_feed_fetch_ops": "Paddle 2.6 passes over it, too",
}
"""Accepted: what they change does not change a result on a CPU."""

_GPU, _XPU, _LITE = "GPUs", "XPUs", "Paddle Lite"
_IPU, _TENSORRT, _INT8 = "IPUs", "TensorRT", "int8 (u8: onernn.Session(model, dtype='u8'))"
_SHAPES = "files of shapes for TensorRT"

NOT_HERE = {
    "collect_shape_range_info": _SHAPES,
    "dist_config": "models over several machines",
    "enable_custom_device": "custom devices",
    "enable_dlnne": "DLNNE",
    "enable_ipu": _IPU,
    "enable_lite_engine": _LITE,
    "enable_low_precision_io": _GPU,
    "enable_mkldnn_int8": _INT8,
    "enable_opencl": _LITE,
    "enable_quantizer": _INT8,
    "enable_save_optim_model": "Paddle's rewritten graphs (onernn.convert writes models)",
    "enable_tensorrt_dla": _TENSORRT,
    "enable_tensorrt_engine": _TENSORRT,
    "enable_tensorrt_explicit_quantization": _TENSORRT,
    "enable_tensorrt_inspector": _TENSORRT,
    "enable_tensorrt_memory_optim": _TENSORRT,
    "enable_tensorrt_varseqlen": _TENSORRT,
    "enable_tuned_tensorrt_dynamic_shape": _TENSORRT,
    "enable_use_gpu": _GPU,
    "enable_xpu": _XPU,
    "exp_enable_use_cutlass": _GPU,
    "load_ipu_config": _IPU,
    "mark_trt_engine_outputs": _TENSORRT,
    "nnadapter": _LITE,
    "pass_builder": "Paddle's passes (`onernn inspect` shows those of this library)",
    "quantizer_config": _INT8,
    "set_dist_config": "models over several machines",
    "set_ipu_config": _IPU,
    "set_ipu_custom_info": _IPU,
    "set_tensorrt_optimization_level": _TENSORRT,
    "set_trt_dynamic_shape_info": _TENSORRT,
    "set_xpu_config": _XPU,
    "set_xpu_device_id": _XPU,
    "to_native_config": "the native engine",
    "xpu_config": _XPU,
}
"""Refused when they are called: they ask for what is not here."""

ANSWERS: dict[str, Any] = {
    "fraction_of_gpu_memory_for_pool": 0.0,
    "gpu_device_id": 0,
    "lite_engine_enabled": False,
    "memory_pool_init_size_mb": 100,
    "mkldnn_int8_enabled": False,
    "onnxruntime_enabled": False,
    "shape_range_info_collected": False,
    "shape_range_info_path": "",
    "tensorrt_dla_enabled": False,
    "tensorrt_dynamic_shape_enabled": False,
    "tensorrt_engine_enabled": False,
    "tensorrt_explicit_quantization_enabled": False,
    "tensorrt_inspector_enabled": False,
    "tensorrt_optimization_level": 3,
    "tensorrt_varseqlen_enabled": False,
    "trt_allow_build_at_runtime": False,
    "tuned_tensorrt_dynamic_shape": False,
    "use_feed_fetch_ops_enabled": False,
    "use_gpu": False,
    "use_opencl": False,
    "use_xpu": False,
    "xpu_device_id": 0,
}
"""Questions with one answer here, that of Paddle 2.6.2 before anybody changed an option."""

MODULE_NOT_HERE = {
    "InternalUtils": "of TensorRT and XPUs",
    "XpuConfig": "there are no XPUs here",
    "_get_phi_kernel_name": "there are no kernels of Paddle here",
    "convert_to_mixed_precision": "models are not rewritten (dtype: enable_mkldnn_bfloat16)",
}
"""Names of the module `paddle.inference` that are not here, and why."""

PREDICTOR_NOT_HERE = {
    "register_output_hook": "operators are fused (onernn.Session.run(inputs, observe) sees nodes)",
}
"""Methods of a predictor that are refused when they are called."""


# `paddle.inference.Config`: which model, and how it is run.

_RECURRENT = frozenset("gru lstm rnn fusion_gru fusion_lstm multi_gru".split())
"""Operators that compute in bfloat16 here where `set_bfloat16_op` lets them."""


class AnalysisConfig:
    """Options as in Paddle 2.6.2, with its defaults: one thread, float32.

    ``AnalysisConfig(folder)``, ``AnalysisConfig(program, parameters)`` or a copy of another. What
    changes no result on a CPU is accepted; what asks for another device or engine raises
    `UnsupportedError`.
    """

    Precision = tensors.Precision
    Float32, Int8, Half, Bfloat16 = tensors.Precision
    __slots__ = (
        "_bfloat16",
        "_bfloat16_ops",
        "_buffers",
        "_by_name",
        "_files",
        "_folder",
        "_ir_optim",
        "_onednn",
        "_quiet",
        "_threads",
    )

    def __init__(self, model: str | AnalysisConfig = "", params: str | None = None) -> None:
        if isinstance(model, AnalysisConfig):
            for name in self.__slots__:
                setattr(self, name, getattr(model, name))
            return
        self._folder, self._files = "", ("", "")
        self._buffers: tuple[bytes, bytes] | None = None
        self._bfloat16, self._bfloat16_ops = False, frozenset[str]()
        self._by_name, self._ir_optim, self._onednn = False, True, True
        self._quiet, self._threads = False, 1
        self.set_model(model, params)

    def set_model(self, model: str, params: str | None = None) -> None:
        """A folder, or a program's file and its parameters'."""
        if params is None:
            self._folder = _path(model)
        else:
            self._files = _path(model), _path(params)

    def set_prog_file(self, file: str) -> None:
        self._files = _path(file), self._files[1]

    def set_params_file(self, file: str) -> None:
        self._files = self._files[0], _path(file)

    def set_model_buffer(
        self, program: bytes, program_size: int, params: bytes, params_size: int
    ) -> None:
        """A model that is in memory: what its two files would hold."""
        self._buffers = bytes(program[:program_size]), bytes(params[:params_size])

    def model_dir(self) -> str:
        return self._folder

    def prog_file(self) -> str:
        return self._files[0]

    def params_file(self) -> str:
        return self._files[1]

    def model_from_memory(self) -> bool:
        return self._buffers is not None

    def set_cpu_math_library_num_threads(self, threads: int) -> None:
        self._threads = int(threads)

    def cpu_math_library_num_threads(self) -> int:
        return self._threads

    def enable_mkldnn(self) -> None:
        self._onednn = True

    def disable_mkldnn(self) -> None:
        self._onednn = False

    def mkldnn_enabled(self) -> bool:
        return self._onednn

    def enable_mkldnn_bfloat16(self) -> None:
        """Recurrent layers compute in bfloat16, as ``onernn.Session(model, dtype="bf16")``."""
        self._bfloat16 = True

    def set_bfloat16_op(self, operators: Set[str]) -> None:
        """Operators, by Paddle's names, that `enable_mkldnn_bfloat16` may change; none: all."""
        self._bfloat16_ops = frozenset(operators)

    def switch_specify_input_names(self, x: bool = True) -> None:
        """`PaddleTensor`s given to ``run`` are told apart by their names, not by position."""
        self._by_name = bool(x)

    def specify_input_name(self) -> bool:
        return self._by_name

    def switch_ir_optim(self, x: bool = True) -> None:
        self._ir_optim = bool(x)

    def ir_optim(self) -> bool:
        return self._ir_optim

    def disable_glog_info(self) -> None:
        self._quiet = True

    def glog_info_disabled(self) -> bool:
        return self._quiet

    def tensorrt_precision_mode(self) -> tensors.Precision:
        return tensors.Precision.Float32

    def summary(self) -> str:
        """A line an option that is honoured."""
        told = {
            "model_dir": self._folder,
            "model_file": self._files[0],
            "params_file": self._files[1],
            "model_from_memory": self.model_from_memory(),
            "cpu_math_thread": self._threads,
            "dtype": self.dtype,
        }
        width = max(map(len, told))
        return "\n".join(f"{name:{width}}  {value}" for name, value in told.items())

    @property
    def dtype(self) -> str:
        """How recurrent layers compute, by the names of `onernn.Session`."""
        ours = not self._bfloat16_ops or not _RECURRENT.isdisjoint(self._bfloat16_ops)
        return "bf16" if self._bfloat16 and self._onednn and ours else "f32"

    @property
    def buffers(self) -> tuple[bytes, bytes] | None:
        return self._buffers


def _path(given: str) -> str:
    if not isinstance(given, str | os.PathLike):
        raise TypeError(f"Config: expected the path of a file or folder, got {given!r}")
    return os.fspath(given)


def _accepted(name: str, why: str) -> Callable[..., None]:
    def option(self: AnalysisConfig, *_: Any, **__: Any) -> None:
        pass

    option.__doc__ = f"Accepted, without effect: {why}."
    return _named(option, name)


def _refused(name: str, what: str) -> Callable[..., None]:
    def option(self: AnalysisConfig, *_: Any, **__: Any) -> None:
        raise UnsupportedError(
            f"Config.{name}: onernn runs on CPUs, without {what}; here are enable_mkldnn,"
            " enable_mkldnn_bfloat16 and set_cpu_math_library_num_threads"
        )

    option.__doc__ = f"Raises `UnsupportedError`: there are no {what} here."
    return _named(option, name)


def _answered(name: str, answer: Any) -> Callable[..., Any]:
    def option(self: AnalysisConfig) -> Any:
        return answer

    option.__doc__ = f"Always {answer!r}."
    return _named(option, name)


def _named(option: Callable[..., Any], name: str) -> Callable[..., Any]:
    option.__name__, option.__qualname__ = name, f"AnalysisConfig.{name}"
    return option


for _make, _table in ((_accepted, NO_EFFECT), (_refused, NOT_HERE), (_answered, ANSWERS)):
    for _name, _value in _table.items():
        setattr(AnalysisConfig, _name, _make(_name, _value))
