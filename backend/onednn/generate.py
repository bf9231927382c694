"""`_bindings.py` from `dnnl.cdef.h`: ``python -m onernn.backend.onednn.generate``.

Out-of-line ABI mode: the declarations are parsed here, once, and not at every import, and no
compiler is needed anywhere. The result is committed; a test compares it with a fresh one.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

_HERE = Path(__file__).parent
MODULE = "onernn.backend.onednn._bindings"


def source() -> str:
    """The text of `_bindings.py` as this version of cffi writes it."""
    from cffi import FFI  # type: ignore[import-untyped, unused-ignore]

    builder = FFI()
    builder.cdef((_HERE / "dnnl.cdef.h").read_text())
    builder.set_source(MODULE, None)
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder, "_bindings.py")
        builder.emit_python_code(str(target))
        return "# mypy: ignore-errors\n" + target.read_text()


if __name__ == "__main__":
    (_HERE / "_bindings.py").write_text(source())
