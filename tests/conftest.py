"""What tests share: where the repository's and the shared folders are, how hard to search."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# No deadline: the machines are shared, and no test may fail on a time. In CI the examples are the
# same in every run, so that a red run is red again.
_UNTIMED: Any = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("here", **_UNTIMED, max_examples=30)
settings.register_profile("ci", **_UNTIMED, max_examples=30, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "here")

pytest_plugins = ["support.shown"]

# No test cuts the power: to wait for the disk shows nothing, and took a tenth of all time.
os.fsync = lambda _: None

# Errors that nobody raised on purpose come out as they are: a guard would hide our own mistakes.
os.environ.setdefault("ONERNN_RAISE", "1")

REPO = Path(__file__).resolve().parents[1]

if folder := os.environ.get("ONERNN_TEST_KERNELS"):  # libraries that a sanitizer watches
    from onernn.kernels import build as _build

    _build.BUILT = Path(folder).resolve()


def pytest_configure() -> None:
    """A run that asks for an instruction set may not test another one in its place."""
    if cap := os.environ.get("ONERNN_MAX_ISA"):
        from onernn.backend.compiled.library import load_kernels
        from onernn.ir.errors import LibraryError

        with suppress(LibraryError):  # tests that need kernels say why there are none
            if load_kernels().missing:
                raise pytest.UsageError(
                    f"ONERNN_MAX_ISA={cap}: its kernels are not built; run: make kernels ISAS=all"
                )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What runs on the kernels needs them built."""
    for item in items:
        if getattr(item, "callspec", None) and item.callspec.params.get("backend") == "kernels":
            item.fixturenames.insert(0, "built")


@pytest.fixture(scope="session", autouse=True)
def default_backend() -> Iterator[None]:
    """ONERNN_TEST_BACKEND: the backend that is the default one of this run, by its name."""
    name = os.environ.get("ONERNN_TEST_BACKEND")
    with pytest.MonkeyPatch.context() as patch:
        if name:
            from onernn.backend import auto, open_backend

            def opened(threads: int | None, capacity: int | None) -> Any:
                return open_backend(name, threads=threads, cache_capacity=capacity)

            patch.setattr(auto, "AutoBackend", opened)
        yield


def _present(folder: Path, what: str) -> Path:
    if not folder.is_dir():
        pytest.skip(f"{what} {folder} not present")
    return folder


@pytest.fixture(scope="session")
def repo() -> Path:
    """The checkout."""
    return REPO


@pytest.fixture(scope="session")
def data() -> Path:
    """Committed recordings: one folder a framework."""
    return REPO / "tests" / "data"


@pytest.fixture(scope="session")
def built() -> Path:
    """The folder of the kernels' libraries, built if they are not; skipped without a compiler."""
    from onernn.kernels import build

    try:
        build.build()
    except build.NoCompiler as error:
        pytest.skip(str(error))
    return build.BUILT


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder that the project's repositories share; the test is skipped where it is not."""
    return _present(Path(os.environ.get("ONERNN_SHARED", REPO.parent / "shared")), "shared folder")


@pytest.fixture(scope="session")
def shared_models(shared: Path) -> Path:
    """Recorded models: one folder a framework."""
    return _present(shared / "models", "folder of recorded models")


@pytest.fixture(scope="session")
def peer_suites() -> Path:
    """Test cases of other projects."""
    default = REPO.parent / "shared" / "peer_suites"
    return _present(Path(os.environ.get("ONERNN_PEER_SUITES", default)), "folder of peers' suites")
