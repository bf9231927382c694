"""The operators in the kernels' library: which ONNX Runtime they serve, and for how long."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from cffi import FFI
from support.interpreters import printed, resident
from support.onnx_models import gru_batch as batch
from support.onnx_models import gru_layer as layer

from onernn.adapters.onnx import optimize
from onernn.backend.compiled.library import load_kernels

pytestmark = pytest.mark.usefixtures("built")


def made(model: onnx.ModelProto, **options: Any) -> onnxruntime.InferenceSession:
    session = optimize(model, **options)
    assert len(session.replaced) == 1
    return session


class _Interface:
    """An OrtApiBase that gives tables of functions up to a version."""

    def __init__(self, version: str, newest: int) -> None:
        self.told: list[tuple[int, str]] = []
        ffi = FFI()
        ffi.cdef("""
            typedef struct { void *(*create_status)(int, const char *); void *others[99]; } Api;
            typedef struct { Api *(*get_api)(uint32_t); const char *(*version)(void); } Base;
        """)
        self._text = ffi.new("char[]", version.encode())
        self._api = ffi.new("Api *")
        self._status = ffi.callback(
            "void *(int, const char *)",
            lambda code, text: self.told.append((code, ffi.string(text).decode())) or self._api,
        )
        self._api.create_status = self._status
        get = ffi.callback(
            "Api *(uint32_t)", lambda asked: self._api if asked <= newest else ffi.NULL
        )
        name = ffi.callback("const char *(void)", lambda: self._text)
        self._kept = (get, name)
        self.base = ffi.new("Base *", {"get_api": get, "version": name})
        self.address = int(ffi.cast("intptr_t", self.base))


@pytest.mark.parametrize(
    "version, newest", [("1.16.3", 16), ("2.0.0", 40), ("0.9", 1)], ids=["old", "another", "first"]
)
def test_an_interface_that_is_not_known_is_refused(version: str, newest: int) -> None:
    kernels, given = load_kernels(), _Interface(version, newest)
    base = kernels.ffi.cast("void *", given.address)
    assert kernels.lib.RegisterCustomOps(kernels.ffi.NULL, base) != kernels.ffi.NULL
    ((code, text),) = given.told
    assert code == 9 and "know ONNX Runtime 1.17 and later ones of version 1" in text
    assert text.endswith(f"this is {version}")


def test_an_interface_that_gives_nothing_registers_nothing() -> None:
    kernels, given = load_kernels(), _Interface("1.0.0", 0)
    base = kernels.ffi.cast("void *", given.address)
    assert kernels.lib.RegisterCustomOps(kernels.ffi.NULL, base) == kernels.ffi.NULL


def test_a_model_with_our_nodes_is_refused_elsewhere() -> None:
    """Its nodes name layers of a session that is made already."""
    session, other = made(layer()), onnxruntime.SessionOptions()
    other.register_custom_ops_library(str(load_kernels().path))
    model = onnx.load_from_string(session._model_bytes)
    (node,) = (each for each in model.graph.node if each.domain == "onernn")
    for number in (node.attribute[0].i, 0, -1, 2**62):
        node.attribute[0].i = number
        with pytest.raises(Exception, match=f"layer {number} "):
            onnxruntime.InferenceSession(model.SerializeToString(), other)
    del node.attribute[:]
    with pytest.raises(Exception, match="layer"):
        onnxruntime.InferenceSession(model.SerializeToString(), other)


@pytest.mark.parametrize("threads", [1, 2])
def test_many_threads_run_one_session_at_once(threads: int) -> None:
    """More of them than stacks are kept."""
    session = made(layer(), threads=threads)
    want = [session.run(None, batch(seed))[0] for seed in range(60)]
    with ThreadPoolExecutor(24) as pool:
        got = list(pool.map(lambda seed: session.run(None, batch(seed))[0], range(60)))
    for mine, theirs in zip(got, want, strict=True):
        assert mine.tobytes() == theirs.tobytes()


@pytest.mark.long
def test_a_session_takes_its_layers_with_it() -> None:
    """Ten more sessions add nothing to the memory of those before.

    The heap grows and shrinks in steps of several layers, at sessions that chance names.
    """
    model = layer(1024)  # 13 MB
    taken = []
    for at in range(25):
        session = made(model, threads=1)
        session.run(None, batch(at))
        del session
        gc.collect()
        taken.append(resident())
    assert np.median(taken[-10:]) - np.median(taken[5:15]) < 10 * 13 / 2  # MB


FORKING = """
    import os, sys
    import numpy as np
    from onernn.adapters.onnx import optimize
    from support.interpreters import ends_of_children

    session = optimize(sys.argv[1], threads=1)
    assert session.replaced
    x = np.random.default_rng(0).uniform(-1, 1, (5, 3, 8)).astype(np.float32)
    (want,) = session.run(None, {"x": x})

    def child():
        (y,) = session.run(None, {"x": x})
        session.run(None, {"x": np.zeros((41, 50, 8), np.float32)})
        os._exit(int(np.abs(y - want).max() > 1e-6))

    print(*ends_of_children(int(sys.argv[2]), lambda seed: None, child))
"""


def test_forked_children_run_the_session(tmp_path: Path) -> None:
    """One thread, and none inside of ONNX Runtime at the fork: its threads and locks do not survive
    one."""
    onnx.save(layer(), tmp_path / "m.onnx")
    assert printed(FORKING, tmp_path / "m.onnx", 8) == ["0"] * 8
