"""Paddle's options of a `Config` that are no options here: each method's name, and why.

Those of `Config` itself, in `config.py`, are honoured.
"""

from __future__ import annotations

from typing import Any

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
