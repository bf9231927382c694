"""Estimates the cycles of the matrix products' inner loops on 64-bit ARM.

``python -m benchmarks.arm64_loops`` measures nothing. llvm-mca simulates the scheduler of a CPU on
the compiled loop, and assumes that all loads hit the first cache. The ideal is the same estimate
for the loop's multiplications alone. The environment variable CXX names a compiler for ARM (a
cross-compiler, or Zig's with a target), and LLVM_MCA names the llvm-mca of LLVM 19.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from onernn.kernels import build

SOURCE = """
#include "quads.hpp"
using namespace onernn;
template <int M, int G, class Sums, class Factor, class Stored>
void loop(Sums (&sums)[M][G], const Factor* const* left, const Stored* panel, std::int64_t K) {
  multiply(sums, left, panel, K);
}
#define LOOP(Sums, Factor, Stored, M, G) \\
  template void loop(Sums (&)[M][G], const Factor* const*, const Stored*, std::int64_t);
"""
QUADS = "QuadSums, QuadFactor, ByteQuad"
# The instruction set, the format of the matrix, the arguments of LOOP, and the CPUs to simulate.
LOOPS = (
    ("neon", "f32", "Floats, float, float", ((6, 1), (1, 4)), "cortex-a72 neoverse-n1 apple-m1"),
    ("neon", "f16", "Floats, float, Half", ((1, 4),), "cortex-a72 neoverse-n1 apple-m1"),
    ("neon", "int8", QUADS, ((3, 1), (1, 1)), "cortex-a72"),
    ("neon_dotprod", "int8", QUADS, ((6, 1), (1, 4)), "neoverse-n1 apple-m1"),
    ("neon_i8mm_bf16", "int8", QUADS, ((6, 1),), "neoverse-n2 neoverse-v1"),
    ("neon_i8mm_bf16", "bf16", "Floats, BrainPair, BrainPair", ((6, 1), (1, 4)), "neoverse-n2"),
)
# The instructions that multiply, and the number of multiply-adds of each.
ADDS = {"fmla": 4, "smull": 8, "smull2": 8, "sadalp": 0, "sdot": 16, "smmla": 32}
ADDS |= {"bfdot": 8, "bfmmla": 16}
JUMP = re.compile(r"(?:b|bl|b\.?(?:eq|ne|l[eost]|g[et]|h[is]|c[cs])|[ct]bn?z)\s(?:.*?(\.L\w+))?")


def multiplications(body: list[str]) -> list[str]:
    return [each for each in body if each.split()[0] in ADDS]


def adds(body: list[str]) -> int:
    return sum(ADDS[each.split()[0]] for each in multiplications(body))


def inner_loop(assembly: str) -> list[str]:
    """Returns the instructions of the innermost loop that has the most multiplications."""
    lines, labels, best = assembly.splitlines(), dict[str, int](), list[str]()
    for number, line in enumerate(lines):
        if label := re.match(r"([\w.$]+):", line):
            labels[label[1]] = number
        jump = JUMP.match(line.strip())
        if jump and jump[1] in labels:
            part = lines[labels[jump[1]] : number + 1]
            body = [each.strip() for each in part if re.match(r"\s+[a-z]", each)]
            if not any(map(JUMP.match, body[:-1])):
                best = max(best, body, key=adds)
    return best


def cycles(body: list[str], cpu: str) -> float:
    """Returns the average number of cycles of one iteration of a loop, over many iterations."""
    command = [os.environ.get("LLVM_MCA", "llvm-mca"), "-mtriple=aarch64", f"-mcpu={cpu}"]
    command += ["-mattr=+v8.2a,+dotprod,+i8mm,+bf16", "-iterations=1000"]
    text = "\n".join(body)
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    return int(re.findall(r"Total Cycles:\s+(\d+)", done.stdout)[0]) / 1000


def rows() -> Iterator[tuple[object, ...]]:
    """Yields for each loop and CPU: the loop, the instruction set, the CPU, the number of
    multiply-adds, the cycles, the ideal cycles, and the ratio of the cycles.
    """
    for isa, stored, types, blocks, cpus in LOOPS:
        for M, G in blocks:
            with tempfile.TemporaryDirectory() as folder:
                source, target = Path(folder, "loop.cpp"), Path(folder, "loop.s")
                source.write_text(f"{SOURCE}LOOP({types}, {M}, {G})\n")
                command = [*build.compiler("aarch64"), *build.COMPILE, *build.isas("aarch64")[isa]]
                command += [f"-I{build.HERE}", "-g0", "-S", str(source), "-o", str(target)]
                build._run(command, Path(folder))
                body = inner_loop(target.read_text())
            for cpu in cpus.split():
                took, ideal = cycles(body, cpu), cycles(multiplications(body), cpu)
                numbers = f"{took:.1f}", f"{ideal:.1f}", f"{took / ideal:.2f}"
                yield f"{stored}, {M} x {16 * G}", isa, cpu, adds(body), *numbers


def main() -> int:
    print("| loop | set | CPU | multiply-adds | cycles | ideal | ratio |")
    print("|---|---|---|---|---|---|---|")
    for each in rows():
        print(f"| {' | '.join(map(str, each))} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
