"""Runs the corpus in a framework without onernn; needs only NumPy and the framework.

    python tools/fault_corpus/run.py paddle [--only state_dropped]   one line per entry and way
    python tools/fault_corpus/run.py paddle --save results           saves results/*.json
    python tools/fault_corpus/run.py --table results                 prints them in Markdown

Each run has its own process, because some runs crash. Exit 1: a run is not right.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
Recordings = Iterator[tuple[Any, list[Any]]]
SOUND = ("right", "absent")
SECONDS = 40.0  # a run that corrupts its memory may hang; all others take a few seconds
# Matches a predictor's log if a pass for recurrent layers has found a layer.
FUSED = re.compile(r"\[(?:fc|mul)_(?:gru|lstm)_fuse_pass\]\S*\n[^\n]*detected [1-9]")


def recordings(folder: Path) -> list[Any]:
    import numpy as np

    return [dict(np.load(file)) for file in sorted(folder.glob("io*.npz"))]


def lod_of(arrays: Any, name: str) -> list[list[int]]:
    return [arrays[f"lod__{name}"].tolist()] if f"lod__{name}" in arrays else []


def paddle_executor(folder: Path, way: str) -> Recordings:
    """Runs the saved operators without fusion."""
    import numpy as np
    import paddle

    paddle.enable_static()
    make = getattr(paddle.base.core, "LoDTensor", None) or paddle.base.core.DenseTensor
    executor = paddle.static.Executor(paddle.CPUPlace())
    program, names, fetches = paddle.static.load_inference_model(str(folder / "model"), executor)
    for arrays in recordings(folder):
        feed = {name: make() for name in names}
        for name, tensor in feed.items():
            tensor.set(arrays[f"in__{name}"], paddle.CPUPlace())
            tensor.set_lod(lod_of(arrays, name))
        found = executor.run(program, feed=feed, fetch_list=fetches, return_numpy=False)
        yield arrays, [np.array(each) for each in found]


def paddle_predictor(folder: Path, way: str) -> Recordings:
    """Runs paddle.inference with its fusion passes, on native kernels, on oneDNN, or on oneDNN in
    int8.
    """
    import paddle

    config = paddle.inference.Config(*(str(folder / f"model.pd{s}") for s in ("model", "iparams")))
    if way == "passes":
        config.disable_mkldnn()
    else:
        config.enable_mkldnn()
    if way == "int8":
        config.enable_quantizer()
        first, make = recordings(folder)[0], paddle.base.core.PaddleTensor
        sample = [make(first["in__x"], "x", lod_of(first, "x"))]
        config.quantizer_config().set_quant_data(sample)
        config.quantizer_config().set_quant_batch_size(1)
    predictor = paddle.inference.create_predictor(config)
    for arrays in recordings(folder):
        for name in predictor.get_input_names():
            handle = predictor.get_input_handle(name)
            handle.copy_from_cpu(arrays[f"in__{name}"])
            handle.set_lod(lod_of(arrays, name))
        predictor.run()
        names = predictor.get_output_names()
        yield arrays, [predictor.get_output_handle(name).copy_to_cpu() for name in names]


def mxnet_symbol(folder: Path, way: str) -> Recordings:
    import mxnet as mx

    symbol = mx.sym.load(str(folder / "model-symbol.json"))
    saved = mx.nd.load(str(folder / "model-0000.params"))
    for arrays in recordings(folder):
        given = {key.split(":")[1]: array for key, array in saved.items()}
        for name in symbol.list_arguments():
            if name not in given:
                array = arrays[f"in__{name}"]
                given[name] = mx.nd.array(array, dtype=array.dtype)
        outputs = symbol.bind(mx.cpu(), given).forward(is_train=way == "training")
        yield arrays, [each.asnumpy() for each in outputs]


WAYS: dict[str, dict[str, Callable[[Path, str], Recordings]]] = {
    "paddle": {
        "executor": paddle_executor,
        "passes": paddle_predictor,
        "onednn": paddle_predictor,
        "int8": paddle_predictor,
    },
    "mxnet": {"onednn": mxnet_symbol, "native": mxnet_symbol, "training": mxnet_symbol},
}
# Variables for legacy static graphs in Paddle 3, and for MXNet's own kernels in place of oneDNN's.
SETTINGS = {"": {"FLAGS_enable_pir_api": "0"}, "native": {"MXNET_USE_MKLDNN_RNN": "0"}}


def one(framework: str, entry: str, way: str) -> None:
    """Runs one entry in this process, and prints a line of JSON for each compared output."""
    import zlib  # noqa: F401  # Paddle 2.6.2 has its own; loading Python's later crashes

    import numpy as np
    import numpy.random  # noqa: F401

    print(json.dumps({"version": __import__(framework).__version__}), flush=True)
    atol = faults()[framework][entry].get("atol", 1e-5)
    for arrays, outputs in WAYS[framework][way](HERE / framework / entry, way):
        for k, found in enumerate(outputs):
            right = arrays[f"out__{k}"]
            error = np.abs(found - right) if found.shape == right.shape else np.array(np.inf)
            if way == "training":  # all elements are expected values, and all of these occur
                apart = np.abs(found[..., None] - arrays[f"train__{k}"])
                error = np.concatenate([apart.min(-1).ravel(), apart.min((0, 1, 2))])
            worst = float(np.where(np.isnan(error), np.inf, error).max())
            print(json.dumps({"error": worst, "wrong": worst > atol}), flush=True)
    os._exit(0)  # a normal exit may crash after memory was corrupted


def verdict(framework: str, entry: str, way: str) -> tuple[str, str]:
    """Returns "right", "wrong", "raises", "crash", "hangs", "not fused" or "absent"; and the
    version.
    """
    environ = {**os.environ, "OMP_NUM_THREADS": "1", **SETTINGS[""], **SETTINGS.get(way, {})}
    command = [sys.executable, __file__, framework, "--one", entry, way]
    try:
        done = subprocess.run(
            command, env=environ, capture_output=True, text=True, errors="replace", timeout=SECONDS
        )
        code, said, log = done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired as expired:
        code, said, log = None, (expired.stdout or b"").decode(), ""
    told = [json.loads(line) for line in said.splitlines() if line.startswith('{"')]
    version = next((each["version"] for each in told if "version" in each), "")
    if not version:
        raise SystemExit(f"{framework} cannot be imported:\n{log[-2000:]}")
    worst = max((each["error"] for each in told if each.get("wrong")), default=None)
    if worst is not None:
        return f"wrong, {worst:.2g}", version
    if code is None:
        return "hangs", version
    if code < 0:
        return f"crash, {signal.Signals(-code).name}", version
    if "has no attribute 'enable_quantizer'" in log:
        return "absent", version
    if code:
        return "raises", version
    fuses = faults()[framework][entry].get("fuses") and way in ("passes", "onednn")
    return ("not fused" if fuses and not FUSED.search(log) else "right"), version


def faults() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((HERE / "faults.json").read_text(encoding="utf-8"))
    return found


def examine(framework: str, only: str | None, save: Path | None) -> bool:
    found: dict[str, dict[str, str]] = {}
    version = ""
    for entry, fault in faults()[framework].items():
        if only in (None, entry):
            for way in fault["ways"]:
                said, version = verdict(framework, entry, way)
                found.setdefault(entry, {})[way] = said
                print(f"{framework} {version}  {entry}, {way}: {said}", flush=True)
    if not found:
        raise SystemExit(f"no entry {only!r}; there are {', '.join(faults()[framework])}")
    sound = all(said in SOUND for ways in found.values() for said in ways.values())
    if save is not None:
        save.mkdir(exist_ok=True)
        file = save / f"{framework}-{version}.json"
        if file.exists():  # keeps the results of entries that did not run
            found = {**json.loads(file.read_text(encoding="utf-8")), **found}
        found = {entry: found[entry] for entry in faults()[framework] if entry in found}
        file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return sound


def table(results: Path) -> str:
    """Returns a table for each framework, a column for each version; failures are bold."""
    lines: list[str] = []
    for framework, entries in faults().items():
        files = sorted(results.glob(f"{framework}-*.json"))
        versions = {f.stem.split("-", 1)[1]: json.loads(f.read_text()) for f in files}
        lines += [f"| {framework} | what is wrong | {' | '.join(versions)} |"]
        lines += ["|---" * (2 + len(versions)) + "|"]
        for entry, fault in entries.items():
            cells = [_cell(found.get(entry, {})) for found in versions.values()]
            lines.append(f"| `{entry}` | {fault['what']} | {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def _cell(found: dict[str, str]) -> str:
    return "<br>".join(
        f"{way}: {said}" if said in SOUND else f"{way}: **{said}**" for way, said in found.items()
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("framework", nargs="?", choices=list(WAYS))
    parser.add_argument("--only", metavar="ENTRY")
    parser.add_argument("--save", type=Path, metavar="FOLDER")
    parser.add_argument("--table", type=Path, metavar="FOLDER")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.table:
        print(table(given.table))
        return 0
    if not given.framework:
        parser.error(f"name a framework: {' or '.join(WAYS)}")
    if given.one:
        one(given.framework, *given.one)
    return 0 if examine(given.framework, given.only, given.save) else 1


if __name__ == "__main__":
    sys.exit(main())
