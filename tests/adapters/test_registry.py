"""The records of the frameworks: who gets a file, which options a writer has, what imports cost."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from support.graphs import new_node
from support.interpreters import run_python

from onernn import Graph, UnsupportedError, load
from onernn.adapters.common.adapter import Adapter
from onernn.adapters.converting import write_model
from onernn.adapters.registry import ADAPTERS, RUNTIMES, WRITERS, adapter_of
from onernn.ir.graph import Value

FACE = (Value("x", "float32", (2, 3)), Value("y", "float32", (2, 3)))
MODEL = Graph("model", FACE[:1], FACE[1:], (new_node("y = Tanh x"),), {})


@pytest.mark.parametrize(
    "path, name",
    [
        ("m.onnx", "ONNX"),
        ("m-symbol.json", "MXNet"),
        ("m.pt2", "PyTorch"),
        ("m.keras", "Keras"),
        ("m.H5", "Keras"),
        ("m.pdmodel", "Paddle"),
        ("__model__", "Paddle"),
        ("anything", "Paddle"),
    ],
)
def test_a_file_is_the_first_framework_s_that_reads_it(path: str, name: str) -> None:
    assert adapter_of(path).name == name


def test_a_folder_with_a_symbol_is_mxnet_s(tmp_path: Path) -> None:
    assert adapter_of(tmp_path).name == "Paddle"
    (tmp_path / "m-symbol.json").write_text("{}")
    assert adapter_of(tmp_path).name == "MXNet"


def test_names_and_suffixes_stand_for_one_framework_each() -> None:
    assert len({each.name for each in ADAPTERS}) == len(ADAPTERS)
    assert len(WRITERS) == sum(each.writer is not None for each in ADAPTERS)
    assert len(RUNTIMES) == sum(each.runtime is not None for each in ADAPTERS)


@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda each: each.name)
def test_what_a_model_may_be_is_the_same_in_the_help_and_in_load(adapter: Adapter) -> None:
    assert load.__doc__ is not None
    kinds = re.findall(r"[\w-]*\.\w+|__\w+__|folder|prefix", adapter.files)
    assert kinds and [kind for kind in kinds if kind not in load.__doc__] == []


def test_an_option_of_another_writer_is_refused_unless_it_says_nothing(tmp_path: Path) -> None:
    for suffix, others in ((".pdmodel", WRITERS[".onnx"]), (".onnx", WRITERS[".pdmodel"])):
        file = tmp_path / f"m{suffix}"
        write_model(MODEL, file, **others.options)
        assert file.exists()
        for name, default in others.options.items():
            other = {"opset": 17, "output_dtype": "float16", "names": {"x": "z"}, "place": "onednn"}
            with pytest.raises(UnsupportedError, match=rf"m\{suffix}: {name} "):
                write_model(MODEL, file, **{name: other.get(name, not default)})


def test_an_option_that_no_writer_has_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="'opsett' is no option; there are opset"):
        write_model(MODEL, tmp_path / "m.onnx", opsett=17)
    assert not list(tmp_path.iterdir())


def test_a_batch_in_a_written_file_s_form_is_padded(tmp_path: Path) -> None:
    from onernn import Ragged

    pads = WRITERS[".onnx"].pads
    assert pads is not None
    made = pads({"x": Ragged(np.arange(6.0).reshape(3, 2), np.array([0, 1, 3]))})
    assert np.array_equal(made["x_lengths"], [1, 2]) and np.shape(made["x"]) == (2, 2, 2)


def test_the_records_cost_no_import_of_what_they_name(tmp_path: Path) -> None:
    code = (
        "import sys, onernn\n"
        "names = [name for name in sys.modules if name.startswith('onernn.adapters.')]\n"
        "names = [name for name in names if not name.startswith('onernn.adapters.common.')]\n"
        "print(*(name for name in names if name.count('.') > 2))"
    )
    assert run_python("-c", code, cwd=tmp_path).stdout.split() == []


@pytest.mark.parametrize(
    "code, heavy",
    [
        ("import onernn.adapters.mxnet as adapter; adapter.optimize", "mxnet"),
        ("import onernn.adapters.paddle as adapter; adapter.optimize", "paddle"),
        ("import onernn.adapters.paddle.read", "google.protobuf"),
    ],
)
def test_importing_an_adapter_imports_nothing_heavy(code: str, heavy: str) -> None:
    probe = f"import sys; {code}; sys.exit({heavy!r} in sys.modules)"
    run_python("-c", probe)
