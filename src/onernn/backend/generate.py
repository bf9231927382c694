"""Generates the `_bindings.py` of both libraries: ``python -m onernn.backend.generate``.

It uses cffi's out-of-line ABI mode. The headers are parsed here, so an import does not parse them,
and no compiler is needed. The generated files are committed. A test compares them with newly
generated ones.
"""

from __future__ import annotations

import re
import tempfile
import zlib
from pathlib import Path

from onernn.kernels.build import HEADERS as KERNELS

_HERE = Path(__file__).parent
HEADERS = {"onednn": (_HERE / "onednn" / "dnnl.cdef.h",), "compiled": KERNELS}
"""The headers of each library, by the folder of its `_bindings.py`."""
_FOR_COMPILERS = re.compile(
    r"^#ifdef __cplusplus$.*?^#endif$|^#(?!define \w+ \S)[^\n]*", re.MULTILINE | re.DOTALL
)
"""Matches the parts of a header that cffi cannot parse."""


def source(folder: str) -> str:
    """Returns the text of a folder's `_bindings.py`, as this version of cffi writes it."""
    from cffi import FFI  # type: ignore[import-untyped, unused-ignore]

    builder = FFI()
    header = b"".join(path.read_bytes() for path in HEADERS[folder])
    builder.cdef(_FOR_COMPILERS.sub("", header.decode()))
    builder.set_source(f"onernn.backend.{folder}._bindings", None)
    with tempfile.TemporaryDirectory() as made:
        target = Path(made, "_bindings.py")
        builder.emit_python_code(str(target))
        checksum = f"CHECKSUM = {zlib.crc32(header)}  # of the header\n"
        return "# mypy: ignore-errors\n" + target.read_text() + checksum


if __name__ == "__main__":
    for each in HEADERS:
        (_HERE / each / "_bindings.py").write_text(source(each))
