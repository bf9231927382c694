"""Models with our layers inside run in ONNX Runtime of any language, by one call."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from support.compiling import compile_program
from support.interpreters import resident
from support.onnx_models import assert_equal, parameters, parsed, quiet, session_of, small
from support.onnx_models import gru_batch as batch
from support.onnx_models import gru_layer as layer
from support.onnx_rnn import random_case

from onernn import ModelFormatError, UnsupportedError
from onernn.adapters.onnx import optimize, plug
from onernn.backend.compiled.library import load_kernels
from onernn.cli import main
from onernn.kernels import build

pytestmark = pytest.mark.usefixtures("built")
HEAD = 384
"""Bytes in front of the numbers: three words, a spec of 176, two parts of 72, a multiple of 64."""


def opened(model: str | bytes | Path, library: Path | None = None) -> onnxruntime.InferenceSession:
    """Stock ONNX Runtime with libonernn, as programs of other languages have it."""
    options = quiet()
    options.register_custom_ops_library(str(library or build.library_of("")))
    return onnxruntime.InferenceSession(model, options)


def plugged(model: onnx.ModelProto, folder: Path, **options: Any) -> Path:
    onnx.save(model, folder / "model.onnx")
    assert plug(folder / "model.onnx", folder / "plugged.onnx", **options).replaced
    return folder / "plugged.onnx"


def assert_same(got: list[np.ndarray], want: list[np.ndarray]) -> None:
    for mine, theirs in zip(got, want, strict=True):
        assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
        assert mine.tobytes() == theirs.tobytes()


def in_a_branch() -> onnx.ModelProto:
    """A layer whose weights stand in the branch of an If."""
    made = parsed(
        """(float[?, ?, 8] x) => (z) {
        c = Constant <value = bool {1}> ()
        z = If (c) <
            then_branch = then () => (float[] y) { y = GRU <hidden_size = 64> (x, W, R) },
            else_branch = other () => (float[] w) { w = Identity (x) }>
        }"""
    )
    made.graph.node[1].attribute[0].g.initializer.extend(layer().graph.initializer)
    return made


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "u8", "int8-dynamic", "int8-weights"])
def test_a_plugged_model_has_the_bits_of_the_live_session(
    dtype: str, repo: Path, tmp_path: Path
) -> None:
    """A tagger of two bidirectional LSTM, and states."""
    model = onnx.load(repo / "tests" / "data" / "onnx" / "torch_tagger" / "model.onnx")
    session, live = opened(plugged(model, tmp_path, dtype=dtype)), optimize(model, dtype=dtype)
    assert len(live.replaced) == 2
    for shape in [(25, 8), (1, 3), (3, 1)]:
        feed = {"in0": np.random.default_rng(0).integers(0, 9, shape)}
        assert_same(session.run(None, feed), live.run(None, feed))
        if dtype == "f32":
            assert_equal(session.run(None, feed), session_of(model).run(None, feed))


def test_layers_in_bodies_are_there_in_the_first_call(tmp_path: Path) -> None:
    session = opened(plugged(in_a_branch(), tmp_path))
    assert_equal(session.run(None, batch(0)), session_of(in_a_branch()).run(None, batch(0)))
    assert_same(session.run(None, batch(0)), optimize(in_a_branch()).run(None, batch(0)))


def test_random_nodes_have_the_bits_of_the_live_session(tmp_path: Path) -> None:
    """All cells, directions and layouts; float64, and float16 with casts around it."""
    double = set()
    for seed in range(60):
        case = random_case(seed)
        try:
            live = optimize(case.model(), session_options=quiet())
        except Exception:  # ONNX Runtime refuses what is left to it
            continue
        if live.replaced:
            session = opened(plugged(case.model(), tmp_path))
            assert_same(session.run(None, case.feed()), live.run(None, case.feed()))
            double.add(case.arrays["X"].dtype == np.float64)
    assert double == {True, False}


def test_the_file_alone_is_enough(tmp_path: Path) -> None:
    """Data beside the model come along; what stood in the file stays until the new one is whole."""
    onnx.save(
        layer(), tmp_path / "m.onnx", save_as_external_data=True, location="data", size_threshold=0
    )
    (tmp_path / "other").mkdir()
    plug(tmp_path / "m.onnx", tmp_path / "other" / "m.onnx")
    (tmp_path / "data").unlink()
    session = opened(tmp_path / "other" / "m.onnx")
    assert_equal(session.run(None, batch(1)), session_of(layer()).run(None, batch(1)))
    with pytest.raises(ModelFormatError, match="data: no such file"):
        plug(tmp_path / "m.onnx", tmp_path / "other" / "m.onnx")
    assert_same(
        opened(tmp_path / "other" / "m.onnx").run(None, batch(1)), session.run(None, batch(1))
    )


def test_links_into_the_store_of_a_hub_are_followed(tmp_path: Path) -> None:
    """ONNX Runtime reads the data that stay outside of the model."""
    proto = layer()
    proto.graph.initializer.append(
        onnx.numpy_helper.from_array(np.zeros((1, 2000), np.float32), "wide")
    )
    proto.graph.node.add(op_type="Identity", input=["wide"], output=["copy"])
    proto.graph.output.add().CopyFrom(onnx.helper.make_empty_tensor_value_info("copy"))
    blobs, view = tmp_path / "blobs", tmp_path / "snapshots" / "1f2e"
    blobs.mkdir()
    view.mkdir(parents=True)
    onnx.save(proto, blobs / "a", save_as_external_data=True, location="data", size_threshold=0)
    (blobs / "data").rename(blobs / "b")
    (view / "m.onnx").symlink_to("../../blobs/a")
    (view / "data").symlink_to("../../blobs/b")
    live = optimize(view / "m.onnx")
    assert live.replaced, live.refusals
    *want, wide = live.run(None, batch(1))
    assert_equal(want, session_of(layer()).run(None, batch(1)))
    assert wide.shape == (1, 2000)
    plug(view / "m.onnx", tmp_path / "alone.onnx")
    assert_same(opened(tmp_path / "alone.onnx").run(None, batch(1)), [*want, wide])


def test_a_program_in_cpp_has_the_bits_of_the_live_session(repo: Path, tmp_path: Path) -> None:
    folder = Path(onnxruntime.__file__).parent / "capi"
    runtime = next(folder.glob("libonnxruntime.so*"), None)
    if runtime is None:
        pytest.skip("this onnxruntime has no library for programs of C")
    here = repo / "tests" / "kernels"
    compile_program(here / "plugged_model.cpp", tmp_path / "program", ("-O1",), here)
    path, x = plugged(layer(), tmp_path), batch(2)["x"]

    def ran(library: Path, **env: str) -> subprocess.CompletedProcess[bytes]:
        command = [tmp_path / "program", runtime, library, path, *map(str, x.shape)]
        env = {**os.environ, **env}
        return subprocess.run(command, input=x.tobytes(), capture_output=True, env=env, check=False)

    done = ran(build.library_of(""))
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout == optimize(layer()).run(None, {"x": x})[0].tobytes()
    least = ran(build.library_of(""), ONERNN_MAX_ISA=next(iter(build.isas())))  # of the same file
    (want,) = session_of(layer()).run(None, {"x": x})
    assert_equal([np.frombuffer(least.stdout, "f4").reshape(want.shape)], [want])
    alone = tmp_path / "libonernn.so"
    shutil.copy(build.library_of(""), alone)
    done = ran(alone)
    assert done.returncode == 1 and f"{tmp_path}/libonernn-".encode() in done.stderr


def test_without_the_library_onnx_runtime_names_it(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="onernn:Layer.* is not a registered function"):
        onnxruntime.InferenceSession(plugged(layer(), tmp_path), quiet())


def summed(head: bytes, numbers: bytes) -> bytes:
    """A layer with the checksum that it should have."""
    kernels, rest = load_kernels(), head[16:] + numbers
    checksum = kernels.lib.onernn_checksum(kernels.ffi.from_buffer(rest), len(rest))
    return head[:8] + np.int64(checksum).tobytes() + rest


def damaged(good: bytes) -> Iterator[bytes]:
    """Layers that are cut, changed without the checksum, and wrong with the right checksum."""
    rng = np.random.default_rng(0)
    head, numbers = good[:HEAD], good[HEAD:]
    yield from (b"", b"\0", good[:HEAD], good[:-1], good + b"\0", good[::-1])
    for at in (0, 9, 16, 40, HEAD - 1, HEAD, len(good) - 1):
        yield good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :]
    yield from (summed(head, numbers[:-64]), summed(head, b""), summed(head[:64], b""))
    extremes = [0, -1, 1, 2, 63, 64, 2**24, 2**31, 2**40, 2**62, -(2**63)]
    for at in range(24, HEAD, 4):
        for value in rng.choice(extremes, 5, replace=False):
            size = int(rng.choice([4, 8]))
            word = np.int64(value).tobytes()[:size]
            yield summed((head[:at] + word + head[at + size :])[:HEAD], numbers)


@pytest.mark.parametrize("op", ["GRU", "LSTM"])
def test_a_damaged_layer_is_an_error_or_another_layer(op: str, tmp_path: Path) -> None:
    """Never a crash: what its checks let through reads its own numbers only."""
    text = f"(float[?, ?, 8] x) => (y) {{ y = {op} <hidden_size = 4> (x, W, R) }}"
    made = parsed(text, small(parameters(op, 8, 4), "W", "R"))
    model = onnx.load(plugged(made, tmp_path))
    (node,) = model.graph.node
    good, refused, ran = node.attribute[0].s, 0, 0
    assert summed(good[:HEAD], good[HEAD:]) == good
    for bad in damaged(good):
        node.attribute[0].s = bad
        try:
            session = opened(model.SerializeToString())
        except Exception as error:
            assert any(
                text in str(error)
                for text in ("is damaged", "another version", "another type", "does not have")
            ), error
            refused += 1
            continue
        try:
            session.run(None, batch(3))
        except Exception as error:
            assert "expected shape" in str(error) or "another" in str(error), error
        ran += 1
    assert refused > 100 and ran > 20


def test_a_layer_that_onnx_has_not_is_refused(tmp_path: Path) -> None:
    """Sizes fit its numbers, but not the states of a node: c is wider than h."""
    model = onnx.load(plugged(layer(), tmp_path))
    ffi, (node,) = load_kernels().ffi, model.graph.node
    good = node.attribute[0].s
    for field in ("projection", "added", "attention", "layers"):
        head = bytearray(good[:HEAD])
        spec = ffi.cast("onernn_spec *", ffi.from_buffer(head) + 24)
        part = ffi.cast("onernn_part *", ffi.from_buffer(head) + 24 + ffi.sizeof("onernn_spec"))
        spec.cell, spec.units, part.projection = load_kernels().lib.ONERNN_RNN, 64, 0
        if field == "projection":
            spec.cell, spec.units, spec.width = load_kernels().lib.ONERNN_LSTM, 32, 8
        setattr(spec, field, 2 if field == "layers" else 1)
        node.attribute[0].s = summed(bytes(head), good[HEAD:])
        with pytest.raises(Exception, match="damaged"):
            opened(model.SerializeToString())


def test_sessions_that_come_and_go_leave_no_memory(tmp_path: Path) -> None:
    path = plugged(layer(), tmp_path)
    taken = []
    for _ in range(2):
        for at in range(200):
            opened(path).run(None, batch(at))
        taken.append(resident())
    assert taken[1] - taken[0] < 4  # MB; a library that is loaded anew leaves 73 KB


def test_what_cannot_be_plugged_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    onnx.save(parsed("(float[?] x) => (y) { y = Relu (x) }"), tmp_path / "none.onnx")
    with pytest.raises(UnsupportedError, match=r"none\.onnx"):
        plug(tmp_path / "none.onnx", out)
    with pytest.raises(
        UnsupportedError, match="expected an RNN, GRU or LSTM node"
    ):  # it is done already
        plug(plugged(layer(), tmp_path), out)
    (tmp_path / "text.onnx").write_text("no model")
    with pytest.raises(ModelFormatError, match=r"text\.onnx"):
        plug(tmp_path / "text.onnx", out)
    with pytest.raises(ModelFormatError, match=r"nowhere\.onnx"):
        plug(tmp_path / "nowhere.onnx", out)
    with pytest.raises(UnsupportedError, match="f12"):
        plug(tmp_path / "none.onnx", out, dtype="f12")
    assert not out.exists()


def test_the_command_names_the_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(layer(), tmp_path / "m.onnx")
    command = ["onernn", "plug", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "p.onnx")]
    monkeypatch.setattr("sys.argv", command)
    with pytest.raises(SystemExit, match="0"):
        main()
    assert capsys.readouterr().out == "node 'layer' (GRU): GRU left2right, f32\n"
    assert_equal(
        opened(tmp_path / "p.onnx").run(None, batch(4)), session_of(layer()).run(None, batch(4))
    )
