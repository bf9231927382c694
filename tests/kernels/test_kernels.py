"""The kernels' own tests, in C++: compiled for the last instruction set that this CPU runs.

ONERNN_KERNEL_SETS=all (`make capped`) tests the sets before it, too, as a compiler optimizes them.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from support.compiling import CHECKED, STRICT, check_syntax, compile_program, compiler
from support.interpreters import run_program

from onernn.kernels import list_included

HERE = Path(__file__).parent
KERNELS = HERE.parents[1] / "src" / "onernn" / "kernels"
HEADERS = sorted(str(file.relative_to(KERNELS)) for file in KERNELS.rglob("*.hpp"))
TESTS = sorted(file.stem for file in HERE.glob("*_test.cpp"))
# Flags by the namespace that kernels are in with them, and what /proc/cpuinfo calls the rest.
TARGETS = {
    "portable": (("-march=x86-64-v2",), {"sse4_2"}),
    "avx2_without_f16c": (
        ("-march=x86-64-v2", "-mavx2", "-mfma", "-mno-f16c"),
        {"avx2", "fma"},
    ),
    "avx2": (("-march=x86-64-v2", "-mavx2", "-mfma", "-mf16c"), {"avx2", "fma", "f16c"}),
    "avx2_vnni": (("-march=x86-64-v2", "-mavx2", "-mfma", "-mf16c", "-mavxvnni"), {"avx_vnni"}),
    "avx512": (("-march=skylake-avx512",), {"avx512f", "avx512bw", "avx512vl", "avx512dq"}),
    "avx512_vnni": (("-march=cascadelake",), {"avx512_vnni", "avx512bw", "avx512vl", "avx512dq"}),
    "avx512_bf16": (("-march=cooperlake",), {"avx512_bf16", "avx512_vnni"}),
}
# What these instructions change; of all else build.py takes the objects of the set before.
CHANGED = {
    "avx2_without_f16c": ["functions_test"],
    "avx2_vnni": ["cells_test", "products_test"],
    "avx512_vnni": ["cells_test", "products_test"],
    "avx512_bf16": ["cells_test", "products_test", "training_test"],
}
_CPU = set(Path("/proc/cpuinfo").read_text().split())
RUN_HERE = [target for target, (_, needs) in TARGETS.items() if needs <= _CPU] or ["portable"]
OPTIMIZED = "-O0"  # compiles in half the time
if os.environ.get("ONERNN_KERNEL_SETS") == "all":
    OPTIMIZED = "-O1"
    CASES = [(target, test) for target in RUN_HERE for test in CHANGED.get(target, TESTS)]
else:
    CASES = [(RUN_HERE[-1], test) for test in TESTS]


def run(test: str, namespace: str, flags: tuple[str, ...], folder: Path) -> None:
    program = folder / test
    compile_program(HERE / f"{test}.cpp", program, flags, HERE, KERNELS)
    done = run_program(program, namespace, timeout=600)
    assert "\nok  " in f"\n{done.stdout}", "no test ran"


@pytest.mark.parametrize("target, test", CASES)
@pytest.mark.long
def test_kernels_are_right_on_an_instruction_set(target: str, test: str, tmp_path: Path) -> None:
    run(test, target, (OPTIMIZED, *TARGETS[target][0]), tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("test", TESTS)
def test_kernels_read_and_write_nothing_but_their_own(test: str, tmp_path: Path) -> None:
    """Under the sanitizers of addresses and of undefined behaviour, without SSE4: in loops only."""
    run(test, "portable", (*CHECKED, "-march=x86-64"), tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("test", CHANGED["avx512_bf16"])
def test_products_in_twins_of_tiles_are_right_and_read_nothing_but_their_own(
    test: str, tmp_path: Path
) -> None:
    run(test, "tiles", (*CHECKED, *TARGETS[RUN_HERE[-1]][0], "-DONERNN_TILES"), tmp_path)


@pytest.mark.long
@pytest.mark.skipif("fma" not in _CPU, reason="the trap adds with FMA")
def test_tile_instructions_have_the_bits_of_their_twin(tmp_path: Path) -> None:
    """By this CPU if it has AMX, else by a handler of the signal that they raise."""
    flags = ("-mamx-tile", "-mamx-bf16", "-mamx-int8", OPTIMIZED, *TARGETS[RUN_HERE[-1]][0])
    run("tiles_test", RUN_HERE[-1], flags, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("test", ["team_test", "training_test"])
def test_threads_race_nowhere(test: str, tmp_path: Path) -> None:
    try:
        run(test, "portable", ("-O2", "-g1", "-fsanitize=thread"), tmp_path)
    except AssertionError as error:
        if "tsan" in str(error):
            pytest.skip("no thread sanitizer here")
        raise


@pytest.mark.long
@pytest.mark.parametrize("header", HEADERS)
def test_each_header_compiles_alone_and_says_what_stands_there(header: str, tmp_path: Path) -> None:
    file = KERNELS / header
    text = file.read_text()
    guard = f"ONERNN_{file.stem.upper()}_HPP"
    assert text.startswith("// ") and f"#ifndef {guard}\n#define {guard}\n" in text
    assert max(map(len, text.splitlines())) <= 100
    (tmp_path / "one.cpp").write_text(f'#include "{header}"\n#include "{header}"\n')
    check_syntax(tmp_path / "one.cpp", (), tmp_path, KERNELS)


@pytest.mark.long
def test_objects_of_two_instruction_sets_share_no_kernel(tmp_path: Path) -> None:
    """Linked together, neither calls what was compiled for the other."""
    (tmp_path / "one.cpp").write_text(
        '#include "gru.hpp"\n#include "recurrent.hpp"\n#include "serial.hpp"\n'
        "struct Sizes : onernn::Traits<float> { std::int64_t inputs = 1, units = 1, width = 1; };\n"
        "void run(onernn::Recurrent<onernn::Gru<Sizes>>& cells, onernn::Serial& team) {\n"
        "  cells.run({}, {}, {}, {}, team);\n}\n"
    )
    found = []
    for target in ("portable", "avx2"):
        command = [compiler(), *STRICT, *TARGETS[target][0], "-I", KERNELS, "-c", "one.cpp"]
        run_program(*command, "-o", f"{target}.o", cwd=tmp_path)
        names = ["nm", "--defined-only", "--format=just-symbols", f"{target}.o"]
        done = run_program(*names, cwd=tmp_path)
        found.append({name for name in done.stdout.split() if "onernn" in name})
        assert len(found[-1]) > 10
    assert found[0].isdisjoint(found[1])


def test_headers_come_behind_those_that_they_need() -> None:
    order = list_included(["gru.hpp", "team.hpp"])
    assert order.index("isa.hpp") < order.index("lanes.hpp") < order.index("gru.hpp")
    assert len(order) == len(set(order)) and "lstm.hpp" not in order


def test_functions_that_leave_their_counts_to_a_rule_have_one() -> None:
    """Else `onernn compile` would write files that nobody can open."""
    tables = {file.stem: file.read_text() for file in (KERNELS / "library").glob("*.cpp")}
    rules = re.findall(r'(?:RULE|RUN)\("(\w+)"|\{"(\w+)", (?:true|false)', tables.pop("bounds"))
    left = re.findall(r'\((\w+), ByRule\)|ByRule>\("(\w+):', "".join(tables.values()))
    assert len(left) > 30 and {a or b for a, b in left} == {a or b for a, b in rules} - SCATTERED


SCATTERED = {"scatter_elements", "scatter_nd"}
"""Of both kinds of indices: their macro says it."""
