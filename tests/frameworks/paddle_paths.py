"""Runs a saved model through paddle.inference, in a process of its own: some paths crash it.

python paddle_paths.py FOLDER PATHS IN.npz OUT.npz: on each path ("fused,onednn") the batches 0, 1,
... of IN, ``0/in__NAME`` and ``0/lod__NAME``, one after the other through one predictor; outputs by
position, ``fused/0/out__0``.
"""

from __future__ import annotations

import os
import sys

# Before Paddle, which brings another zlib.
import zlib  # noqa: F401
from typing import Any

import numpy as np
import numpy.random  # noqa: F401
import paddle.inference


def main(folder: str, paths: str, given: str, out: str) -> None:
    found: dict[str, Any] = {}
    paddle.disable_signal_handler()  # its handler hangs where memory is damaged
    for path in paths.split(","):
        found |= {f"{path}/{key}": a for key, a in run(folder, path, dict(np.load(given))).items()}
    np.savez(out, **found)
    os._exit(0)  # freeing memory that was overwritten may fail


def run(folder: str, path: str, arrays: dict[str, Any]) -> dict[str, Any]:
    config = paddle.inference.Config(f"{folder}/model.pdmodel", f"{folder}/model.pdiparams")
    config.disable_gpu()
    config.disable_glog_info()
    config.set_cpu_math_library_num_threads(1)
    config.switch_ir_optim(path != "plain")
    if path == "onednn":
        config.enable_mkldnn()
    elif path != "default":
        config.disable_mkldnn()
    predictor = paddle.inference.create_predictor(config)
    found: dict[str, Any] = {}
    for batch in sorted({key.partition("/")[0] for key in arrays}):
        for name in predictor.get_input_names():
            handle = predictor.get_input_handle(name)
            handle.copy_from_cpu(np.ascontiguousarray(arrays[f"{batch}/in__{name}"]))
            if (key := f"{batch}/lod__{name}") in arrays:
                handle.set_lod([arrays[key].tolist()])
        predictor.run()
        for at, name in enumerate(predictor.get_output_names()):
            found[f"{batch}/out__{at}"] = predictor.get_output_handle(name).copy_to_cpu()
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
