"""The declarations agree with oneDNN's headers, and the committed module with the declarations."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
from importlib import metadata
from pathlib import Path

import pytest

from onernn.backend import generate
from onernn.backend.onednn import _bindings

FOLDER = Path(_bindings.__file__).parent
TYPES, FUNCTIONS = (FOLDER / "dnnl.cdef.h").read_text().split("/* ---- functions ---- */")
NAMES = re.findall(r"\b\w+(?= = )|(?<=#define )\w+", TYPES)
CONSTANTS = {name: _bindings.ffi.integer_const(name) for name in NAMES}
ENUMS = re.findall(r"} (dnnl_\w+_t);", TYPES)  # and the structs


def tables(source: str) -> dict[str, object]:
    """What cffi reads of a module; layout, comments and the format's own version left out."""
    (call,) = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    values = {word.arg: ast.literal_eval(word.value) for word in call.keywords if word.arg}
    del values["_version"]
    return values


@pytest.mark.parametrize("folder", generate.HEADERS)
def test_the_committed_modules_are_made_of_the_declarations(folder: str) -> None:
    committed, fresh = (
        (FOLDER.parent / folder / "_bindings.py").read_text(),
        generate.source(folder),
    )
    assert tables(committed) == tables(fresh)
    assert committed.splitlines()[-1] == fresh.splitlines()[-1]  # the header's checksum


def headers() -> Path:
    if given := os.environ.get("ONERNN_DNNL_HEADERS"):
        return Path(given)
    try:
        files = metadata.files("onednn-devel-cpu-gomp") or []
    except metadata.PackageNotFoundError:
        pytest.skip("neither onednn-devel-cpu-gomp nor ONERNN_DNNL_HEADERS is there")
    (header,) = (f for f in files if f.as_posix().endswith("include/oneapi/dnnl/dnnl.h"))
    return Path(str(header.locate())).resolve().parents[2]


def complaints(constants: dict[str, int], functions: str) -> str:
    """What a C compiler says against them, with oneDNN's headers before its eyes."""
    compiler = shutil.which("cc") or shutil.which("gcc") or pytest.skip("no C compiler")
    ffi, sizes = _bindings.ffi, ["dnnl_dims_t", *ENUMS]
    offsets = [("dnnl_exec_arg_t", "memory"), ("dnnl_version_t", "cpu_runtime")]
    asserted = [f"{name} == {value}" for name, value in constants.items()]
    asserted += [f"sizeof({name}) == {ffi.sizeof(name)}" for name in sizes]
    asserted += [f"offsetof({t}, {field}) == {ffi.offsetof(t, field)}" for t, field in offsets]
    source = [
        "#include <stddef.h>",
        "#include <oneapi/dnnl/dnnl.h>",
        "#include <oneapi/dnnl/dnnl_debug.h>",
        "#if __has_include(<omp.h>)\n#include <omp.h>\n#endif",
        *(f'_Static_assert({text}, "{text}");' for text in asserted),
        functions,
    ]
    flags = ["-std=c11", "-fsyntax-only", "-x", "c", "-I", str(headers()), "-"]
    done = subprocess.run(
        [compiler, *flags], input="\n".join(source), text=True, capture_output=True
    )
    return done.stderr


def test_constants_sizes_and_prototypes_are_those_of_the_headers() -> None:
    assert len(CONSTANTS) > 75 and len(ENUMS) > 12 and FUNCTIONS.count(";") > 40
    assert complaints(CONSTANTS, FUNCTIONS) == ""


def test_the_comparison_sees_a_wrong_constant() -> None:
    assert "dnnl_f32 == 4" in complaints(CONSTANTS | {"dnnl_f32": 4}, FUNCTIONS)


def test_the_comparison_sees_a_wrong_prototype() -> None:
    swapped = FUNCTIONS.replace("int nargs", "float nargs")
    assert "dnnl_primitive_execute" in complaints(CONSTANTS, swapped)
