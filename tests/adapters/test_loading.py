"""Loading: from the model's folder alone, nothing executed, and in little memory."""

from __future__ import annotations

import io
import os
import shutil
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from support.counting import memory_peak
from support.interpreters import run_python
from support.mxnet_files import symbol_text, var, write_params
from support.onnx_models import parsed

from onernn import BudgetError, ModelFormatError, OnernnError, UnsupportedError, load, read_weights
from onernn.verification.recording import read_arrays, write_outputs

MB = 10**6


def onnx_gru(hidden: int) -> onnx.ModelProto:
    return parsed(
        f"(float[T, N, {hidden}] x) => (y) {{ y = GRU <hidden_size = {hidden}> (x, W, R) }}",
        {name: np.zeros((1, 3 * hidden, hidden), np.float32) for name in "WR"},
    )


def inline(folder: Path, hidden: int) -> Path:
    (folder / "m.onnx").write_bytes(onnx_gru(hidden).SerializeToString())
    return folder / "m.onnx"


def external(folder: Path, hidden: int) -> Path:
    onnx.save(
        onnx_gru(hidden),
        folder / "m.onnx",
        save_as_external_data=True,
        location="w",
        size_threshold=0,
    )
    return folder / "m.onnx"


def mxnet(folder: Path, hidden: int) -> Path:
    numbers = np.zeros(6 * hidden * hidden + 6 * hidden, np.float32)
    write_params({"arg:p": numbers}, folder / "m-0000.params")
    attributes = {"mode": "gru", "num_layers": "1", "state_size": str(hidden)}
    names = ["data", "p", "state"]
    text = symbol_text(*map(var, names), ("RNN", "r", attributes, names))
    (folder / "m-symbol.json").write_text(text)
    return folder / "m-symbol.json"


PEAK = """
import re, sys
from onernn import load
load(sys.argv[1])
print(1024 * int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]))
"""


@pytest.mark.parametrize("write", [inline, external, mxnet])
def test_loading_takes_twice_the_file_at_most(write, tmp_path: Path) -> None:
    """Three times would be seen: what the process has without a model is about 45 MB."""
    path = write(tmp_path, 1700)
    size = sum(file.stat().st_size for file in tmp_path.iterdir())
    assert size > 69 * MB
    assert size < int(run_python("-c", PEAK, path).stdout) <= 2 * size + 100 * MB
    shutil.rmtree(tmp_path)


WATCH = """
import os, sys
from onernn import load
paths, folder = sys.argv[2:], os.path.realpath(sys.argv[1])
for path in paths:  # what is imported late is imported now
    load(path)
seen = []
def hook(event, given):
    if event in ("exec", "import", "pickle.find_class", "ctypes.dlopen"):
        seen.append((event, str(given)[:200]))
    if event.startswith(("subprocess", "os.system", "os.exec", "os.spawn", "os.fork", "socket")):
        seen.append((event, str(given)[:200]))
    if event == "open" and isinstance(given[0], str):
        if not os.path.realpath(given[0]).startswith(folder):
            seen.append((event, given[0]))
sys.addaudithook(hook)
for path in paths:
    load(path)
print(seen)
"""


def test_loading_opens_the_models_files_and_executes_nothing(data: Path) -> None:
    """As Python's own audit tells it, for every recorded model."""
    paths = [folder for kind in ("paddle", "mxnet") for folder in (data / kind).iterdir()]
    paths = [path for path in paths if path.is_dir()] + list(data.glob("onnx/*/*.onnx"))
    assert len(paths) > 50
    assert run_python("-c", WATCH, data, *paths).stdout == "[]\n"


@pytest.mark.parametrize("kind", ["parameter", "combined", "mxnet", "onnx", "folder"])
def test_links_that_leave_the_folder_are_refused(kind: str, data: Path, tmp_path: Path) -> None:
    inside, outside = tmp_path / "model", tmp_path / "outside"
    outside.mkdir()
    if kind == "onnx":
        inside.mkdir()
        path, moved = external(inside, 4), inside / "w"
    elif kind == "mxnet":
        inside.mkdir()
        path, moved = mxnet(inside, 4), inside / "m-0000.params"
    else:
        shutil.copytree(data / "paddle" / "fc_gru_h0_rev0", inside)
        path = inside
        moved = inside / {"combined": "model.pdiparams"}.get(kind, "model.pdmodel")
        if kind == "parameter":
            moved = separate(inside)
    load(path)  # as it is, it can be read
    shutil.move(moved, outside)
    moved.symlink_to(outside / moved.name)
    with pytest.raises(ModelFormatError, match=moved.name):
        load(path)
    moved.unlink()
    (inside / "kept").mkdir()
    shutil.move(outside / moved.name, inside / "kept")
    moved.symlink_to(Path("kept") / moved.name)  # a link that stays is followed
    load(path)


def separate(folder: Path) -> Path:
    """A combined file taken apart, as Paddle 1 saved; gives one of the parts."""
    from onernn.adapters.paddle.read import read_program
    from onernn.adapters.paddle.writer import _tensor

    for name, array in read_program(folder).parameters.items():
        (folder / name).write_bytes(_tensor(array))
        last = folder / name
    (folder / "model.pdiparams").unlink()
    (folder / "model.pdmodel").rename(folder / "__model__")
    return last


def refused(path: Path) -> str:
    """What refuses a model that would take more than its promise."""
    reasons = []

    def attempt() -> None:
        with pytest.raises(OnernnError) as error:
            load(path)
        reasons.append(str(error.value))

    assert memory_peak(attempt) < 250 * MB
    return reasons[0]


def constants(folder: Path, count: int, size: int, offset: int = 0) -> Path:
    """A model of constants in one file ``w`` beside it, each further by ``offset``."""
    model = onnx_gru(2)
    for at in range(count):
        tensor = TensorProto(name=f"c{at}", data_type=1, dims=[size // 4], data_location=1)
        places = {"location": "w", "offset": str(at * offset), "length": str(size)}
        for key, value in places.items():
            tensor.external_data.add(key=key, value=value)
        model.graph.initializer.append(tensor)
    (folder / "m.onnx").write_bytes(model.SerializeToString())
    return folder / "m.onnx"


def sparse_file(file: Path, size: int) -> None:
    with file.open("wb") as stream:
        stream.truncate(size)


def test_sizes_without_bytes_are_refused(tmp_path: Path) -> None:
    sparse_file(tmp_path / "w", 2 * 10**12)
    said = refused(constants(tmp_path, 1, 10**12))
    assert "initializer 'c0' would take" in said and "m.onnx" in said


def test_400_tensors_of_one_region_are_one(tmp_path: Path) -> None:
    sparse_file(tmp_path / "w", 40 * MB)
    path = constants(tmp_path, 400, 40 * MB)
    assert memory_peak(lambda: load(path)) < 80 * MB
    assert "overlaps" in refused(constants(tmp_path, 400, 39 * MB, 1000))


def test_one_file_under_many_names_counts_once(data: Path, tmp_path: Path) -> None:
    """Paddle opens ``w``, ``./w`` and ``././w``: each would be read again."""
    from onernn.ir.budget import LOADING, FileBudget

    budget, file = FileBudget(), tmp_path / "w"
    sparse_file(file, MB)
    for name in ("w", "./w", "././w"):
        budget.reads((tmp_path / name).stat())
    assert budget.most == LOADING + 2 * MB
    budget.take(LOADING + 2 * MB)
    with pytest.raises(BudgetError):
        budget.take(1)


@pytest.mark.parametrize("kind", ["json", "pir"])
def test_small_texts_that_become_many_objects_are_refused(kind: str, tmp_path: Path) -> None:
    text = '{"nodes": [' + "[]," * 5 * MB + "[]]}"
    path = tmp_path / ("m-symbol.json" if kind == "json" else "m.json")
    path.write_text(text)
    (tmp_path / "m.pdiparams").write_bytes(b"")
    assert "as objects would take" in refused(path)


def npz(**members: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return out.getvalue()


def npy(shape: tuple[int, ...], count: int) -> bytes:
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        out, {"descr": "<f4", "fortran_order": False, "shape": shape}
    )
    return out.getvalue() + bytes(4 * count)


def test_npz_bombs_are_refused_and_what_nobody_asks_for_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onernn.ir.budget.LOADING", 20 * MB)
    file = tmp_path / "io.npz"
    bomb = npy((6 * MB,), 6 * MB)
    file.write_bytes(npz(in__x=npy((2,), 2), bomb=bomb))
    assert memory_peak(lambda: read_arrays(file)) < 10 * MB
    assert list(read_arrays(file)) == ["in__x"]
    file.write_bytes(npz(in__x=bomb))

    def attempt() -> None:
        with pytest.raises(BudgetError, match=r"in__x\.npy.* 24,000"):
            read_arrays(file)

    assert memory_peak(attempt) < 10 * MB


def test_members_that_share_their_bytes_count_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onernn.ir.budget.LOADING", MB)
    members = {f"in__{k}": npy((200_000,), 200_000) for k in range(99)}
    file = tmp_path / "io.npz"
    file.write_bytes(npz(**members))
    with pytest.raises(BudgetError, match="in__[0-9]+.npy.* would take 800,"):
        read_arrays(file)


def test_pipes_in_a_folder_are_no_files_of_a_model(tmp_path: Path) -> None:
    (tmp_path / "symbol").mkdir()
    os.mkfifo(tmp_path / "symbol" / "m-symbol.json")
    path = mxnet(tmp_path, 4)
    (tmp_path / "m-0000.params").unlink()
    os.mkfifo(tmp_path / "m-0000.params")
    for model in (path, tmp_path, tmp_path / "symbol", tmp_path / "symbol" / "m"):
        with pytest.raises(ModelFormatError, match=r"no \.params file|no such file|no MXNet model"):
            load(model)


@pytest.mark.parametrize("suffix", [".keras", ".onnx", ".pt2", ".xml", ".npz"])
def test_a_pipe_is_no_file_of_a_model_or_of_arrays(suffix: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / f"model{suffix}")
    with pytest.raises(ModelFormatError, match=f"model{suffix}"):
        (read_weights if suffix == ".npz" else load)(tmp_path / f"model{suffix}")


def test_half_a_character_is_no_name(data: Path, tmp_path: Path) -> None:
    pir = next(iter(data.glob("paddle/pir_*/model.json"))).read_bytes()
    (tmp_path / "model.json").write_bytes(pir.replace(b'"magic"', b'"\\ud800":0,"magic"', 1))
    symbol = mxnet(tmp_path, 4)
    symbol.write_text(symbol.read_text().replace('"data"', r'"\udfff"'))
    for model in (symbol, tmp_path / "model.json"):
        with pytest.raises(ModelFormatError, match="half of a surrogate|surrogates not allowed"):
            load(model)


@pytest.mark.parametrize("name", ["a\0b", "a" * 70_000, "\ud800"])
def test_a_name_that_a_zip_would_cut_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="for an array"):
        write_outputs(tmp_path / "o.npz", {name: np.zeros(1)})
    assert not list(tmp_path.iterdir())
    whole = {"词" * 20_000: np.ones(1, np.float32)}
    write_outputs(tmp_path / "o.npz", whole)
    assert [*read_arrays(tmp_path / "o.npz")] == [f"out__{key}" for key in whole]


def test_a_zip_directory_that_lies_is_found_out(tmp_path: Path) -> None:
    file, whole = tmp_path / "io.npz", npz(in__x=npy((1000,), 1000))
    size = (len(npy((1000,), 1000))).to_bytes(4, "little")
    for lie in (10, 10**9):
        file.write_bytes(whole.replace(size, lie.to_bytes(4, "little")))
        with pytest.raises(OnernnError):
            read_arrays(file)
    file.write_bytes(npz(in__x=npy((10**9,), 1000)))
    with pytest.raises(ModelFormatError, match="does not fit its 4128 bytes"):
        read_arrays(file)
