"""Packs libonernn into an archive: headers, libraries, and files for pkg-config and CMake.

Writes the archive to the given folder and prints its path. Equal files make equal archives.
"""

from __future__ import annotations

import gzip
import io
import platform
import sys
import tarfile
from importlib import metadata
from pathlib import Path

from onernn.kernels import build

VERSION = metadata.version("onernn")
PKG_CONFIG = f"""prefix=${{pcfiledir}}/../..

Name: onernn
Description: Runs recurrent models that onernn compiled
Version: {VERSION}
Cflags: -I${{prefix}}/include
Libs: -L${{prefix}}/lib -lonernn
"""
CMAKE = """get_filename_component(_onernn "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
if(NOT TARGET onernn::onernn)
  add_library(onernn::onernn SHARED IMPORTED)
  set_target_properties(onernn::onernn PROPERTIES
    IMPORTED_LOCATION "${_onernn}/lib/libonernn.so"
    INTERFACE_INCLUDE_DIRECTORIES "${_onernn}/include")
endif()
"""


def archive(folder: Path) -> Path:
    """Writes ``onernn-VERSION-linux-MACHINE.tar.gz``. Raises `BuildError` without a compiler."""
    headers = [build.HEADERS[0], build.HEADERS[0].with_suffix(".hpp")]
    files = {f"include/{header.name}": header.read_bytes() for header in headers}
    build.build()
    for library in sorted(build.BUILT.glob("*.so")):
        files[f"lib/{library.name}"] = library.read_bytes()
    files["lib/pkgconfig/onernn.pc"] = PKG_CONFIG.encode()
    files["lib/cmake/onernn/onernn-config.cmake"] = CMAKE.encode()
    files["LICENSE"] = (Path(__file__).parents[2] / "LICENSE").read_bytes()
    name = f"onernn-{VERSION}-linux-{platform.machine()}"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.tar.gz"
    with (
        gzip.GzipFile(path, "wb", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as tar,
    ):
        for inside, content in files.items():
            entry = tarfile.TarInfo(f"{name}/{inside}")
            entry.size, entry.mode = len(content), 0o755 if inside.endswith(".so") else 0o644
            tar.addfile(entry, io.BytesIO(content))
    return path


if __name__ == "__main__":
    print(archive(Path(sys.argv[1])))
