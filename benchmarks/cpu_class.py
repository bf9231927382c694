"""Runs a command as if the CPU lacked newer instruction sets.

``python -m benchmarks.cpu_class CLASS COMMAND``. CLASS is avx2, avx512 or avx512_vnni.
ONERNN_MAX_ISA and ONEDNN_MAX_CPU_ISA limit onernn and oneDNN; this program also limits frameworks
without such a setting, such as ONNX Runtime. It needs Linux, a C compiler and a CPU whose cpuid can
fault (the flag cpuid_fault in /proc/cpuinfo; Intel since 2012). It does not change caches, clock
rate and memory.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")
CLASSES = ("avx2", "avx512", "avx512_vnni")


def environment(name: str, folder: Path) -> dict[str, str]:
    """Returns the environment variables of a process for which the CPU has the class ``name``.

    Compiles a library into ``folder``. Raises `ValueError` if this machine does not support it.
    """
    if name not in CLASSES:
        raise ValueError(f"expected a class of {', '.join(CLASSES)}, got {name!r}")
    flags = Path("/proc/cpuinfo").read_text().split() if sys.platform == "linux" else []
    if "cpuid_fault" not in flags:
        raise ValueError("needs Linux and a CPU with the flag cpuid_fault in /proc/cpuinfo")
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / "cpu_class.so"
    command = [os.environ.get("CC", "cc"), "-O1", "-shared", "-fPIC", "-o", library, SOURCE]
    try:
        subprocess.run(command, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise ValueError(f"needs a C compiler: {error}") from error
    return {**os.environ, "CPU_CLASS": name, "LD_PRELOAD": str(library.resolve())}


def main(arguments: list[str]) -> int:
    try:
        name, *command = arguments
        environ = environment(name, Path("out"))
        os.execvpe(command[0], command, environ)
    except (ValueError, IndexError, OSError) as error:
        print(f"benchmarks.cpu_class: {error}\n\n{__doc__}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
