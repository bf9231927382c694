"""What reading and fusing make of every model, and what ONNX Runtime's plug-in replaces in it."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

from support.golden import Entry, check, describe, describe_plugin, model_files
from support.onnx_models import read
from support.onnx_rnn import ort_case
from support.recorded_operators import read_recorded

from onernn import load
from onernn.adapters.onnx import optimize


def describe_files(folder: Path) -> dict[str, Entry]:
    return {name: describe(partial(load, path)) for name, path in model_files(folder).items()}


def test_every_model_of_the_tests_is_read_and_fused_as_recorded(data: Path) -> None:
    check("models", describe_files(data))


def test_every_operator_of_mxnet_is_read_and_fused_as_recorded() -> None:
    check("mxnet_operators", {case.name: describe(case.graph) for case in read_recorded()})


def test_every_shared_model_is_read_and_fused_as_recorded(shared_models: Path) -> None:
    check("shared_models", describe_files(shared_models))


def test_every_case_of_other_projects_is_read_and_fused_as_recorded(peer_suites: Path) -> None:
    cases = json.loads((peer_suites / "ort_rnn_cases.json").read_text())["cases"]
    entries = {
        f"onnxruntime {place}": describe(lambda case=case: read(ort_case(case).model()))  # type: ignore[misc]
        for place, case in enumerate(cases)
    }
    check("peer_suites", describe_files(peer_suites) | entries)


def test_the_same_nodes_are_replaced_inside_onnx_runtime(data: Path) -> None:
    models = {name: path for name, path in model_files(data).items() if path.suffix == ".onnx"}
    plugged = {name: partial(optimize, path, threads=1) for name, path in models.items()}
    check("onnxruntime", {name: describe_plugin(each) for name, each in plugged.items()})
