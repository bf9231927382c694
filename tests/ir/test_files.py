"""What a command writes takes the place of an old file whole, or leaves it as it was."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.interpreters import printed

import onernn
from onernn.ir.errors import ModelFormatError
from onernn.ir.files import inside, replacing, replacing_all, staging
from onernn.verification.recording import write_inputs, write_outputs
from onernn.verification.report import write_report

_ROOM = 256  # bytes that a file may have here; all that is written below is longer


@contextmanager
def full_disk() -> Iterator[None]:
    """Every write behind the first bytes of a file fails, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (_ROOM, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def _write_report(out: Path, folder: Path) -> None:
    write_report(onernn.verify(onernn.load(folder), folder / "io.npz"), out)


WRITERS: dict[str, Callable[[Path, Path], Any]] = {
    "out.npz": lambda out, _: write_outputs(out, {"y": np.zeros(1000)}),
    "in.npz": lambda out, _: write_inputs(out, {"y": np.zeros(1000)}),
    "report.html": _write_report,
    **dict.fromkeys(
        ("m.onnx", "m.pdmodel"), lambda out, folder: onernn.convert(onernn.load(folder), out)
    ),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_leaves_the_old_file(name: str, tmp_path: Path, data: Path) -> None:
    out, folder = tmp_path / name, data / "paddle" / "fc_gru_h0_rev0"
    WRITERS[name](out, folder)  # what is imported late is imported now
    good = {file: file.read_bytes() for file in tmp_path.iterdir()}
    assert min(map(len, good.values())) > _ROOM
    with full_disk(), pytest.raises(OSError, match=re.escape(str(out.with_suffix("")))):
        WRITERS[name](out, folder)
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == good


@pytest.mark.parametrize("command", ["run", "weights"])
def test_commands_leave_the_old_output(command: str, tmp_path: Path, data: Path) -> None:
    model, out = data / "paddle" / "fc_gru_h0_rev0", tmp_path / "out.npz"
    out.write_bytes(b"good")
    options = {"run": ["--input", model / "io.npz"], "weights": ["--to", "onnx"]}[command]
    code = f"""import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({_ROOM}, {_ROOM}))
from onernn.cli import main; main()"""
    arguments = [sys.executable, "-B", "-c", code, command, model, "--output", out, *options]
    run = subprocess.run([*map(str, arguments)], capture_output=True, text=True)
    assert run.returncode == 2 and "File too large" in run.stderr and "out.npz" in run.stderr
    assert out.read_bytes() == b"good" and list(tmp_path.iterdir()) == [out]


def test_several_files_are_replaced_together(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text("old")
    second.write_text("old")
    with full_disk(), pytest.raises(OSError, match="second"):
        with replacing_all([first, second]) as streams:
            streams[0].write(b"new")
            streams[1].write(bytes(2 * _ROOM))
    assert first.read_text() == second.read_text() == "old"
    with replacing_all([first, second]) as streams:
        for stream in streams:
            stream.write(b"new")
    assert first.read_text() == second.read_text() == "new"
    assert len(list(tmp_path.iterdir())) == 2


def test_what_fails_midway_leaves_the_old_file(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("old")
    with pytest.raises(KeyboardInterrupt), replacing(file) as stream:
        stream.write(b"new")
        raise KeyboardInterrupt
    assert file.read_text() == "old" and list(tmp_path.iterdir()) == [file]


def test_links_and_rights_stay(tmp_path: Path) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_text("old")
    file.chmod(0o640)
    link.symlink_to(file)
    with replacing(link) as stream:
        stream.write(b"new")
    assert link.is_symlink() and file.read_text() == "new" and file.stat().st_mode & 0o777 == 0o640


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A Hugging Face cache: ``snapshots/REVISION/onnx/`` has links to files in ``blobs/``."""
    snapshot = tmp_path / "hub" / "snapshots" / "1f2e" / "onnx"
    snapshot.mkdir(parents=True)
    (tmp_path / "hub" / "blobs").mkdir()
    for place in ("hub/blobs/model", "hub/blobs/data", "hub/secret", "secret"):
        (tmp_path / place).write_text(place)
    (snapshot / "m.onnx").symlink_to("../../../blobs/model")
    (snapshot / "data").symlink_to("../../../blobs/data")
    return snapshot


def test_links_of_a_hub_cache_lead_to_its_files(cache: Path, tmp_path: Path) -> None:
    assert inside(cache, "data", "W", cache / "m.onnx").read_text() == "hub/blobs/data"
    assert inside(cache, "m.onnx", "the model", cache).read_text() == "hub/blobs/model"
    view = tmp_path / "view"  # of another tool: the model's own link says where its files are
    view.mkdir()
    for name, file in (("m.onnx", "model"), ("data", "data")):
        (view / name).symlink_to(tmp_path / "hub" / "blobs" / file)
    assert inside(view, "data", "W", view / "m.onnx").read_text() == "hub/blobs/data"


@pytest.mark.parametrize("target", ["../../../secret", "../../../../secret", "/etc/hostname"])
def test_links_that_leave_a_hub_cache_are_refused(cache: Path, target: str) -> None:
    (cache / "data").unlink()
    (cache / "data").symlink_to(target)
    with pytest.raises(
        ModelFormatError, match="W: expected a file in the model's folder, got 'data'"
    ):
        inside(cache, "data", "W", cache / "m.onnx")


@pytest.mark.parametrize(
    "name", ["../../../blobs/data", "x/../../../../blobs/data", "{hub}/blobs/data"]
)
def test_names_that_leave_a_hub_cache_are_refused(cache: Path, tmp_path: Path, name: str) -> None:
    """Links may lead to the store, names in a model may not."""
    with pytest.raises(ModelFormatError, match="file in the model's folder"):
        inside(cache, name.format(hub=tmp_path / "hub"), "W", cache / "m.onnx")


def test_a_store_that_is_a_link_is_none(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "hub" / "blobs").rename(tmp_path / "elsewhere")
    (tmp_path / "hub" / "blobs").symlink_to(tmp_path / "elsewhere")
    (cache / "m.onnx").unlink()
    (cache / "m.onnx").write_text("no link")
    with pytest.raises(ModelFormatError, match="file in the model's folder"):
        inside(cache, "data", "W", cache / "m.onnx")


def test_a_new_file_has_the_rights_that_open_gives(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    with replacing(tmp_path / "file"):
        pass
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_device_is_written_to_and_not_replaced() -> None:
    with replacing(os.devnull) as stream:
        stream.write(b"new")
    assert not os.path.isfile(os.devnull)


def test_a_missing_folder_is_named_by_the_file(tmp_path: Path) -> None:
    with (
        pytest.raises(FileNotFoundError, match="nowhere/out.npz"),
        replacing(tmp_path / "nowhere" / "out.npz"),
    ):
        pass


KILLED = """
    import itertools, os, signal, sys
    from pathlib import Path
    import numpy as np
    import onernn
    from onernn.adapters.common.writing import declare
    from onernn.adapters.onnx.write import save, to_onnx
    from onernn.ir.files import replacing_all

    kind, folder, ending = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    names = {"Paddle": "m.pdmodel m.pdiparams", "ONNX": "m.onnx m.onnx.data", "one": "only"}
    files = [folder / name for name in names.get(kind, "first second third").split()]

    def write(number):
        if len(files) != 2:
            with replacing_all(files) as streams:
                for stream in streams:
                    stream.write(str(number).encode())
            return
        matrix = np.full((16, 16), number, np.float32)  # in one file, its name in the other one
        x, y = (onernn.Value(name, "float32", (None, 16)) for name in ("x", f"y{number}"))
        node = onernn.Node("MatMul", ("x", f"w{number}"), (y.name,))
        graph = declare(onernn.Graph("m", (x,), (y,), (node,), {f"w{number}": matrix}), None)
        if kind == "ONNX":
            save(to_onnx(graph), files[0], most=1000)
        else:
            onernn.convert(graph, files[0])

    def content():
        return [file.read_bytes() if file.exists() else None for file in files]

    def killed_before(count):
        child = os.fork()
        if not child:
            def kill(event, _):
                nonlocal count
                if event in ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "open"):
                    count -= 1
                    if count < 0:
                        os.kill(os.getpid(), ending)
            # a shell may start jobs that ignore SIGINT
            signal.signal(signal.SIGINT, signal.default_int_handler)
            sys.addaudithook(kill)
            write(2)
            os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0

    write(2)
    new = content()
    write(1)
    old = content()
    assert all(one != other for one, other in zip(old, new))
    ends = set()
    for count in itertools.count():
        finished = not killed_before(count)
        now = content()
        are_old, are_new = ([a == b for a, b in zip(now, which)] for which in (old, new))
        if any(are_old) and any(are_new):
            ends.add("mixed")
        elif now[0] is None:
            ends.add("missing")
        else:
            ends.add("old" if all(are_old) else "new" if all(are_new) else "wrong")
        write(1)  # the next run
        assert content() == old and {*folder.iterdir()} == {*files}, [*folder.iterdir()]
        if finished:
            break
    print(count, *sorted(ends))
"""


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("kind", ["Paddle", "ONNX", "three", "one"])
def test_a_run_that_is_ended_anywhere_mixes_no_files_and_the_next_one_cleans_up(
    kind: str, ending: signal.Signals, tmp_path: Path
) -> None:
    """Ended before each operation on the folder; of one file the old or the new one is there.

    Only a process that is killed may leave no first file: all others put the old files back."""
    count, *ends = printed(KILLED, kind, tmp_path, int(ending))
    assert int(count) > 3
    may_miss = kind != "one" and ending == signal.SIGKILL
    assert ends == ["missing"] * may_miss + ["new", "old"]


def test_temporary_files_of_runs_that_live_stay(tmp_path: Path) -> None:
    with replacing(tmp_path / "one") as stream, staging(tmp_path / "set") as (trial, keep):
        stream.write(b"one")
        trial.write_text("first")
        trial.with_name("aside").write_text("second")
        before = {*tmp_path.iterdir()}
        printed(
            """
            import sys
            from onernn.ir.files import replacing, replacing_all
            with replacing(sys.argv[1] + "/other"):
                pass
            with replacing_all([sys.argv[1] + "/other", sys.argv[1] + "/another"]):
                pass
            """,
            tmp_path,
        )
        assert {*tmp_path.iterdir()} == before | {tmp_path / "other", tmp_path / "another"}
        keep()
    texts = {file.name: file.read_text() for file in tmp_path.iterdir()}
    assert texts == {"one": "one", "set": "first", "aside": "second", "other": "", "another": ""}


def test_what_only_looks_like_a_temporary_file_stays(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").write_text("")
    os.symlink("kept", tmp_path / ".onernn-0.part")
    os.mkfifo(tmp_path / ".onernn-1.part")
    with replacing(tmp_path / "out"):
        pass
    assert len(list(tmp_path.iterdir())) == 4 and (tmp_path / "kept" / "file").exists()


def test_writers_of_the_same_files_at_the_same_time_mix_nothing(tmp_path: Path) -> None:
    files = [tmp_path / "first", tmp_path / "second"]

    def write(number: int) -> None:
        for turn in range(20):
            with replacing_all(files) as streams:
                for stream in streams:
                    stream.write(f"{number} {turn}".encode())

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    first, second = (file.read_text() for file in files)
    assert first == second and {*tmp_path.iterdir()} == {*files}


def test_what_cannot_be_renamed_leaves_the_old_set(tmp_path: Path) -> None:
    files = [tmp_path / "first", tmp_path / "second"]
    for file in files:
        file.write_text("old")
    with pytest.raises(OSError, match="second"):
        with replacing_all(files) as streams:
            for stream in streams:
                stream.write(b"new")
            files[1].unlink()
            files[1].mkdir()  # no file takes its place
    assert files[0].read_text() == "old" and len(list(tmp_path.iterdir())) == 2
