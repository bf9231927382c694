"""`paddle.inference.Config`: the options that onernn implements, and tables of the others.

`AnalysisConfig` defines the implemented options. The tables list the other methods by name, with a
reason.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Set
from typing import Any

from onernn.adapters.paddle.inference import tensors
from onernn.ir.errors import UnsupportedError


def _by_name(reasons: Mapping[str, str]) -> dict[str, str]:
    return {name: why for why, names in reasons.items() for name in names.split()}


NO_EFFECT = _by_name(
    {
        "how Paddle rewrites its graph": "delete_pass disable_mkldnn_fc_passes set_mkldnn_op",
        "there is no GPU here": "disable_gpu",
        "which engine Paddle asks": """
            disable_onnxruntime enable_onnxruntime enable_ort_optimization
        """,
        "how Paddle manages memory": "enable_memory_optim set_mkldnn_cache_capacity",
        "how Paddle walks its graph": "enable_new_executor",
        "what Paddle logs": "enable_profile switch_ir_debug",
        "mixed precision is on GPUs": """
            exp_disable_mixed_precision_ops exp_enable_mixed_precision_ops
        """,
        "there is no TensorRT here": "exp_disable_tensorrt_ops",
        "where Paddle keeps rewritten graphs": "set_optim_cache_dir",
        "Paddle 2.6 also passes over it": "switch_use_feed_fetch_ops",
    }
)
"""Methods without effect, because they do not change a result on a CPU."""

NOT_HERE = _by_name(
    {
        "files of shapes for TensorRT": "collect_shape_range_info",
        "models over several machines": "dist_config set_dist_config",
        "custom devices": "enable_custom_device",
        "DLNNE": "enable_dlnne",
        "IPUs": "enable_ipu load_ipu_config set_ipu_config set_ipu_custom_info",
        "Paddle Lite": "enable_lite_engine enable_opencl nnadapter",
        "GPUs": "enable_low_precision_io enable_use_gpu exp_enable_use_cutlass",
        "int8 (u8: onernn.Session(model, dtype='u8'))": """
            enable_mkldnn_int8 enable_quantizer quantizer_config
        """,
        "Paddle's rewritten graphs (onernn.convert writes models)": "enable_save_optim_model",
        "TensorRT": """
            enable_tensorrt_dla enable_tensorrt_engine enable_tensorrt_explicit_quantization
            enable_tensorrt_inspector enable_tensorrt_memory_optim enable_tensorrt_varseqlen
            enable_tuned_tensorrt_dynamic_shape mark_trt_engine_outputs
            set_tensorrt_optimization_level set_trt_dynamic_shape_info
        """,
        "XPUs": "enable_xpu set_xpu_config set_xpu_device_id xpu_config",
        "Paddle's passes (`onernn inspect` shows onernn's passes)": "pass_builder",
        "the native engine": "to_native_config",
    }
)
"""Methods that raise an error when they are called, because onernn lacks the named feature."""

_OFF = """
    lite_engine_enabled mkldnn_int8_enabled onnxruntime_enabled shape_range_info_collected
    tensorrt_dla_enabled tensorrt_dynamic_shape_enabled tensorrt_engine_enabled
    tensorrt_explicit_quantization_enabled tensorrt_inspector_enabled tensorrt_varseqlen_enabled
    trt_allow_build_at_runtime tuned_tensorrt_dynamic_shape use_feed_fetch_ops_enabled use_gpu
    use_opencl use_xpu
"""
ANSWERS: dict[str, Any] = {
    **dict.fromkeys(_OFF.split(), False),
    "fraction_of_gpu_memory_for_pool": 0.0,
    "gpu_device_id": 0,
    "memory_pool_init_size_mb": 100,
    "shape_range_info_path": "",
    "tensorrt_optimization_level": 3,
    "xpu_device_id": 0,
}
"""Methods that always return the default of Paddle 2.6.2."""

MODULE_NOT_HERE = {
    "InternalUtils": "of TensorRT and XPUs",
    "XpuConfig": "there are no XPUs here",
    "_get_phi_kernel_name": "onernn has no kernels of Paddle",
    "convert_to_mixed_precision": "models are not rewritten (dtype: enable_mkldnn_bfloat16)",
}
"""Names of the module `paddle.inference` that onernn does not have, and the reasons."""

PREDICTOR_NOT_HERE = {
    "register_output_hook": "operators are fused (onernn.Session.run(inputs, observe) sees nodes)",
}
"""Methods of a predictor that raise an error when they are called, and the reasons."""


_RECURRENT = frozenset("gru lstm rnn fusion_gru fusion_lstm multi_gru".split())
"""Operators for which `set_bfloat16_op` can enable bfloat16."""


class AnalysisConfig:
    """The options of Paddle 2.6.2, with its defaults: one thread, float32.

    ``AnalysisConfig(folder)`` and ``AnalysisConfig(program, parameters)`` name a model.
    ``AnalysisConfig(other)`` is a copy. Options that change no result on a CPU have no effect.
    Options for other devices or engines raise `UnsupportedError`.
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
        """Sets the folder of a model, or the files of its program and of its parameters."""
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
        """Sets a model that is in memory: the contents of its two files."""
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
        """Makes recurrent layers compute in bfloat16, like ``onernn.Session(model,
        dtype="bf16")``.
        """
        self._bfloat16 = True

    def set_bfloat16_op(self, operators: Set[str]) -> None:
        """Sets the operators, by Paddle's names, that `enable_mkldnn_bfloat16` may change. An empty
        set means all operators.
        """
        self._bfloat16_ops = frozenset(operators)

    def switch_specify_input_names(self, x: bool = True) -> None:
        """Makes ``run`` identify `PaddleTensor`s by name, not by position."""
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
        """Returns one line for each implemented option."""
        rows = {
            "model_dir": self._folder,
            "model_file": self._files[0],
            "params_file": self._files[1],
            "model_from_memory": self.model_from_memory(),
            "cpu_math_thread": self._threads,
            "dtype": self.dtype,
        }
        width = max(map(len, rows))
        return "\n".join(f"{name:{width}}  {value}" for name, value in rows.items())

    @property
    def dtype(self) -> str:
        """The dtype in which recurrent layers compute, by its name in `onernn.Session`."""
        ours = not self._bfloat16_ops or not _RECURRENT.isdisjoint(self._bfloat16_ops)
        return "bf16" if self._bfloat16 and self._onednn and ours else "f32"

    @property
    def buffers(self) -> tuple[bytes, bytes] | None:
        return self._buffers


def _path(given: str) -> str:
    if not isinstance(given, str | os.PathLike):
        raise TypeError(f"Config: expected the path of a file or folder, got {given!r}")
    return os.fspath(given)


def _option(name: str, text: str, answer: Any = None, refused: bool = False) -> Callable[..., Any]:
    def option(self: AnalysisConfig, *_: Any, **__: Any) -> Any:
        if refused:
            raise UnsupportedError(text)
        return answer

    option.__name__, option.__qualname__ = name, f"AnalysisConfig.{name}"
    option.__doc__ = f"Raises `UnsupportedError`: {text}." if refused else text
    return option


for _name, _why in NO_EFFECT.items():
    setattr(AnalysisConfig, _name, _option(_name, f"Accepted, without effect: {_why}."))
for _name, _answer in ANSWERS.items():
    setattr(AnalysisConfig, _name, _option(_name, f"Always {_answer!r}.", _answer))
for _name, _what in NOT_HERE.items():
    _text = (
        f"Config.{_name}: onernn runs on CPUs, without {_what}; use enable_mkldnn,"
        " enable_mkldnn_bfloat16 and set_cpu_math_library_num_threads"
    )
    setattr(AnalysisConfig, _name, _option(_name, _text, refused=True))
