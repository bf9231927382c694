"""What is inside of the shipped libraries: instructions, symbols, what they need of a system."""

from __future__ import annotations

import re
import shutil
from functools import cache
from pathlib import Path

import pytest
from support.interpreters import run_program

from onernn.kernels import build

ISAS = [isa for isa in build.isas() if isa in build.choose_sets() or build.library_of(isa).exists()]
# VEX and EVEX, by name or register.
WIDE = re.compile(
    r"v|k(mov|or|and|xor|not|unpck|shift|test|add)|.*%([yz]mm|xmm1[6-9]|xmm[23]\d|k[0-7])"
)
# Others that x86-64-v2 lacks. tzcnt is missing: older CPUs take it for bsf, and compilers write it
# where both give the same.
NEWER = {
    *("andn", "bextr", "blsi", "blsmsk", "blsr", "bzhi", "mulx", "pdep", "pext", "lzcnt"),
    *("rorx", "sarx", "shlx", "shrx", "movbe", "adcx", "adox", "rdrand", "rdseed", "gf2p8mulb"),
    *("aesenc", "aesenclast", "aesdec", "aesdeclast", "aesimc", "pclmulqdq", "sha256rnds2"),
}


def printed(tool: str, *arguments: str | Path) -> str:
    """What a tool of GNU's binutils prints; the test is skipped where it is not."""
    if not shutil.which(tool):
        pytest.skip(f"no {tool} here")
    return run_program(tool, *arguments).stdout


_INSTRUCTION = re.compile(
    r"^ *[0-9a-f]+:\t(?:(?:rep|repz|repnz|lock|bnd|notrack|data16) +)*(\S.*)", re.MULTILINE
)


@cache
def instructions(library: Path) -> list[str]:
    """Each one's name and operands, without prefixes."""
    return _INSTRUCTION.findall(printed("objdump", "-d", "--no-show-raw-insn", library))


def beyond_v2(library: Path) -> list[str]:
    return [each for each in instructions(library) if WIDE.match(each) or each.split()[0] in NEWER]


pytestmark = pytest.mark.usefixtures("built")
x86 = pytest.mark.skipif("v2" not in ISAS, reason="not x86-64")


@x86
def test_the_v2_library_has_no_instruction_beyond_x86_64_v2() -> None:
    """Not even of a template of the standard library, of which the linker takes any copy."""
    library = build.library_of("v2")
    assert len(instructions(library)) > 10_000
    assert beyond_v2(library) == []


@x86
@pytest.mark.parametrize("isa", ISAS[1:])
def test_the_others_have_what_they_are_named_for(isa: str) -> None:
    """So what would be found in the v2 library, is."""
    text = {"avx2": "%ymm", "avx512": "%zmm", "avx512_bf16": "vdpbf16ps", "avx512_amx": "%tmm"}
    found = instructions(build.library_of(isa))
    assert sum(text.get(isa, "vpdpbusd") in each for each in found) > 100
    assert len(beyond_v2(build.library_of(isa))) > 10_000
    beyond = {
        "avx2": "%zmm|vpdpbusd",
        "avx2_vnni": "%zmm|%[xyz]mm1[6-9]",
        "avx512": "vdpbf16ps|vpdpbusd",
        "avx512_vnni": "vdpbf16ps",
        "avx512_bf16": "%tmm",
        "avx512_amx": "vdpbf16ps",  # sums would be added in another order
    }.get(isa)
    assert not beyond or not [each for each in found if re.search(beyond, each)]


@pytest.mark.parametrize("isa", ISAS)
def test_only_the_functions_of_the_header_can_be_seen(isa: str) -> None:
    table = printed("nm", "-D", "--defined-only", "--format=just-symbols", build.library_of(isa))
    declared = set(
        re.findall(
            r"\b(onernn_\w+|RegisterCustomOps)\(", "".join(h.read_text() for h in build.HEADERS)
        )
    )
    assert set(table.split()) == declared and len(declared) >= 4


@pytest.mark.parametrize("isa", ISAS)
def test_a_library_needs_nothing_but_the_c_library(isa: str) -> None:
    """The compiler's runtime is inside, so that no other one in the process is bound."""
    dynamic = printed("readelf", "-dW", build.library_of(isa))
    if "libstdc++" in dynamic:
        pytest.skip("the compiler has no static runtime")
    needed = set(re.findall(r"NEEDED.*\[(.+?)\.so", dynamic))
    assert needed <= {"libc", "libm", "libpthread", "libdl", "ld-linux-x86-64", "ld-linux-aarch64"}
    assert "RPATH" not in dynamic and "RUNPATH" not in dynamic and "TEXTREL" not in dynamic
    segments = printed("readelf", "-lW", build.library_of(isa)).splitlines()
    assert [line for line in segments if "GNU_STACK" in line and "RWE" not in line]
