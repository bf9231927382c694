"""What all commands have in common: examples, --json, --quiet, a bar, suggestions, Ctrl-C."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from support import command_line

from onernn import score_command, showing
from onernn.cli import app
from onernn.commands import FORWARDED, Commands

COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
FORWARDING = {name for name, each in COMMANDS.items() if each.context_settings == FORWARDED}

Run = Callable[[str], tuple[int, str, str]]


@pytest.fixture
def onernn(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command line beside a model ``m`` and its ``io.npz``: (exit code, stdout, stderr)."""
    (tmp_path / "m").symlink_to(data / "paddle" / "fc_gru_h0_rev0")
    (tmp_path / "io.npz").symlink_to(data / "paddle" / "fc_gru_h0_rev0" / "io.npz")
    monkeypatch.chdir(tmp_path)

    def run(line: str) -> tuple[int, str, str]:
        done = command_line.onernn(*shlex.split(line))
        return done.returncode, done.stdout, done.stderr

    return run


def test_some_command_forwards_what_stands_behind_its_name() -> None:
    assert FORWARDING == {"paddle-run"}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_examples_that_can_be_parsed(name: str) -> None:
    """A new one: ``app.command(examples=["onernn NAME ..."])``."""
    command = COMMANDS[name]
    _, _, listed = (command.epilog or "").partition("Examples:\n")
    whole = listed.replace("\\\n", " ")
    lines = [line.strip() for line in whole.splitlines() if line.strip()]
    assert lines, f"{name}: no examples; give them to app.command(examples=[...])"
    for line in lines:
        program, called, *arguments = shlex.split(line)
        assert (program, called) == ("onernn", name)
        command.make_context(name, arguments)  # raises for what it does not take


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - FORWARDING))
def test_a_command_can_print_json_and_be_quiet(name: str) -> None:
    flags = {flag for each in COMMANDS[name].params for flag in each.opts}
    assert {"--json", "--quiet", "-q"} <= flags


@pytest.mark.parametrize(
    "line, code, status",
    [
        ("run m --input io.npz --output out.npz", 0, "pass"),
        ("inspect m", 0, "pass"),
        ("emit m -o generated", 0, "pass"),
        ("weights m --to onnx --output w.npz", 0, "pass"),
        ("convert m m.onnx --check io.npz", 0, "pass"),
        ("verify m --data io.npz", 0, "pass"),
        ("audit m", 1, "fail"),
        ("", 0, "pass"),
        ("--version", 0, "pass"),
        ("verify m --data nothing.npz", 2, "error"),
        ("emit nothing -o generated", 2, "error"),
        ("weights m --to latin --output w.npz", 2, "error"),
        ("run m --input io.npz", 2, "error"),
        ("verify m --data io.npz --atol nan", 2, "error"),
        ("verify m --data io.npz --rtol -1", 2, "error"),
        ("run m --input io.npz --output out.npz --no-such-option", 2, "error"),
    ],
)
def test_json_is_all_that_stdout_gets(onernn: Run, line: str, code: int, status: str) -> None:
    exit_code, stdout, stderr = onernn(f"{line} --json")
    told = json.loads(stdout)
    assert (exit_code, told["status"]) == (code, status), stderr
    assert {"outputs", "cause"} <= told.keys()
    assert (told["cause"] is not None) == (code == 2) == bool(stderr)


def test_what_all_commands_take_may_stand_in_front_of_the_command(onernn: Run) -> None:
    assert onernn("--json audit m") == onernn("audit m --json")
    assert onernn("-q inspect m") == (0, "", "")
    assert onernn("--quiet") == (0, "", "")


def test_what_the_system_says_of_a_file_comes_without_its_number(
    onernn: Run, tmp_path: Path
) -> None:
    code, stdout, stderr = onernn("run m --input io.npz --output nowhere/out.npz --json")
    folder = tmp_path / "nowhere"
    said = f"{folder / 'out.npz'}: the folder {folder} does not exist; create it"
    assert (code, stderr) == (2, f"onernn: {said}\n")
    assert json.loads(stdout)["cause"]["text"] == said


def test_a_device_is_no_model_and_no_hint_names_it(onernn: Run) -> None:
    code, _, stderr = onernn("inspect /dev/null")
    assert (code, stderr) == (2, "onernn: /dev/null: expected a file, got a pipe or device\n")


@pytest.mark.parametrize(
    "command", ["run m --input io.npz -o -", "weights m --to torch -o -", "score m rows.jsonl -"]
)
def test_a_hyphen_is_no_name_of_an_output(onernn: Run, tmp_path: Path, command: str) -> None:
    code, stdout, stderr = onernn(command)
    said = "'-': expected the name of a file or folder; for standard output, type /dev/stdout"
    assert (code, stdout, stderr) == (2, "", f"onernn: {said} and --quiet\n")
    assert not (tmp_path / "-").exists()


def test_plug_names_a_folder_that_was_given_as_the_file(onernn: Run, tmp_path: Path) -> None:
    code, _, stderr = onernn(f"plug {tmp_path} -o p.onnx")
    assert (code, stderr) == (2, f"onernn: {tmp_path}: expected a file, got a folder\n")


def test_lines_of_a_command_that_knows_no_json_are_json_too(
    capsys: pytest.CaptureFixture[str],
) -> None:
    known = Commands()

    @known.command()
    def first(name: str, fail: bool = False) -> None:
        print(f"one {name}")
        showing.stdout().print("two")
        raise typer.Exit(int(fail))

    @known.command()
    def second() -> None: ...

    for flag, code, status in (("", 0, "pass"), ("--fail", 1, "fail")):
        found = known(["first", "x", "--json", *flag.split()], standalone_mode=False)
        told = json.loads(capsys.readouterr().out)
        assert (found or 0, told["status"]) == (code, status)
        assert told["lines"] == ["one x", "two"]
    assert known(["first", "x", "--quiet", "--fail"], standalone_mode=False) == 1
    assert capsys.readouterr().out == ""


def test_a_quiet_command_prints_errors_only(onernn: Run) -> None:
    assert onernn("inspect m --quiet") == (0, "", "")
    assert onernn("verify m --data io.npz -q") == (0, "", "")
    code, stdout, stderr = onernn("inspect nothing -q")
    assert (code, stdout) == (2, "") and "nothing: no such file" in stderr


def test_inspect_tells_as_json_what_it_tells_in_words(onernn: Run) -> None:
    _, stdout, _ = onernn("inspect m --json")
    told = json.loads(stdout)
    assert told["interface"]["inputs"][0]["name"] == "x"
    assert [each["called"] for each in told["fused"]] == ["fc_gru_fuse_pass"]
    assert told["operators"]["Rnn"] == [1, 1] and told["operators"]["MatMul"] == [1, 0]
    assert [each["cell"] for each in told["kernels"]] == ["GRU"] and not told["unsupported"]


def test_the_version_is_the_packages(onernn: Run) -> None:
    assert onernn("--version") == (0, f"onernn {version('onernn')}\n", "")


def test_without_arguments_five_things_are_offered_that_are_commands(onernn: Run) -> None:
    code, stdout, stderr = onernn("")
    lines = [line for line in stdout.splitlines() if line]
    offered = [line.split() for line in lines if line.startswith("  onernn ")]
    assert code == 0 and not stderr
    assert len([line for line in lines if not line.startswith(" ")]) == 5 + 1  # and how to go on
    for _, name, *arguments in offered:
        COMMANDS[name].make_context(name, arguments)


@pytest.mark.parametrize(
    "line, hint",
    [
        ("inspect m --dtpye f32", "--dtype"),
        ("inspect m --dtype BF16", "did you mean 'bf16'?"),
        ("inspect m --backend kernel", "did you mean 'kernels'?"),
        ("inspect m --semantics documentd", "did you mean 'documented'?"),
        ("inspect mm", "did you mean 'm'?"),
        ("inspect tagger", "did you mean 'tagger.onnx'?"),
        ("inspect tagger.onxn", "did you mean 'tagger.onnx'?"),
        ("weights m --to pytorch --output w.npz", "did you mean 'torch'?"),
        ("weights m --to torch --output w.npz --node tmp3", "did you mean 'tmp_3'?"),
        ("convert m m.onxn", "did you mean '.onnx'?"),
        ("emit m -o g --weights fp16", "did you mean 'f16'?"),
        ("run m --input X.npz --output out.npz", "did you mean 'x'?"),
    ],
)
def test_a_misspelled_name_is_answered_with_the_one_that_is_like_it(
    onernn: Run, tmp_path: Path, line: str, hint: str
) -> None:
    with np.load(tmp_path / "io.npz") as recorded:
        np.savez(tmp_path / "X.npz", in__X=recorded["in__x"])
    (tmp_path / "tagger.onnx").touch()
    code, _, stderr = onernn(line)
    assert code == 2 and hint in stderr, stderr


def test_a_misspelled_command_is_answered_once(onernn: Run) -> None:
    """typer before 0.26 and click since 8.3 each wrote the hint."""
    code, _, stderr = onernn("verfy m")
    assert code == 2 and stderr.count("Did you mean 'verify'?") == 1


@pytest.mark.parametrize("name", ["notice", "io.npy", "empt", "m/io.np"])
def test_a_hint_names_nothing_that_cannot_be_a_model(
    onernn: Run, tmp_path: Path, name: str
) -> None:
    (tmp_path / "NOTICE").touch()
    (tmp_path / "empty").mkdir()
    code, _, stderr = onernn(f"run {name} --input io.npz -o out.npz")
    assert code == 2 and f"{name}: no such file or folder" in stderr
    assert "did you mean" not in stderr


def test_a_name_that_is_like_none_gets_no_hint(onernn: Run) -> None:
    _, _, stderr = onernn("inspect m --backend cuda")
    assert "did you mean" not in stderr


def process(repo: Path, *words: str, **environment: str) -> dict[str, Any]:
    """How to start a process of the command line."""
    code = "import sys; sys.argv[0] = 'onernn'; from _onernn_command import main; main()"
    environment["PYTHONPATH"] = str(repo / "src")  # installed editably before it had this module
    return {"args": [sys.executable, "-c", code, *words], "env": {**os.environ, **environment}}


@pytest.mark.parametrize(
    "words, wanted",
    [("onernn ver", {"verify"}), ("onernn inspect m --dtype b", {"bf16"})],
)
def test_a_shell_completes_commands_and_values(repo: Path, words: str, wanted: set[str]) -> None:
    place = {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    done = subprocess.run(
        **process(repo, _ONERNN_COMPLETE="complete_bash", **place), capture_output=True, text=True
    )
    assert set(done.stdout.split()) == wanted, done.stderr


def on_a_terminal(work: str, **environment: str) -> str:
    """What a terminal shows of Python code that runs inside of a command."""
    ours, theirs = pty.openpty()
    code = f"{SHOWING}\n{work}"
    environment = {"TERM": "xterm", "COLUMNS": "100", **environment}
    known = {**os.environ, **environment}
    known.pop("NO_COLOR", None) if "NO_COLOR" not in environment else None
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=theirs, stderr=theirs, stdin=theirs, env=known
    ) as child:
        os.close(theirs)
        shown = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # Linux tells so that the other end is closed
                break
            if not part:
                break
            shown += part
    os.close(ours)
    assert child.returncode == 0, shown
    return shown.decode()


SHOWING = """
import sys
from onernn import showing
sys.stdout = showing.Output(sys.stdout, is_result=True)
"""
LONG = """
showing.PATIENCE = 0
with showing.working("work", False), showing.progress() as tell:
    tell("step [bold]one", 1, 2)
    if showing._bar:
        showing._bar._timer.join()
    print("result")
"""
SHORT = """
showing.PATIENCE = 1000
with showing.working("work", False), showing.progress() as tell:
    tell("step", 1, 2)
    print("result")
"""


def test_a_terminal_sees_a_bar_while_it_waits_and_then_results_alone() -> None:
    shown = on_a_terminal(LONG)
    assert "step [bold]one" in shown and "50%" in shown
    assert shown.rstrip().endswith("result")
    assert "step" not in shown[shown.rindex("\x1b[2K") :]  # the bar's lines are cleared


def test_what_is_done_at_once_shows_no_bar() -> None:
    assert on_a_terminal(SHORT) == "result\r\n"


def test_a_pipe_gets_no_bar_and_no_colours() -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"{SHOWING}\n{LONG}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("result\n", "")


COLOURED = "showing.stdout().print('pass', style='bold green')"


def test_colours_are_for_terminals_that_want_them() -> None:
    assert re.search(r"\x1b\[[\d;]*m", on_a_terminal(COLOURED))
    assert on_a_terminal(COLOURED, NO_COLOR="1") == "pass\r\n"


FULL = (2, "", "onernn: stdout: No space left on device\n")


@pytest.mark.parametrize(
    "words, streams, wanted",
    [
        ("--help", ">/dev/full", FULL),
        ("inspect m --json", ">/dev/full", FULL),
        ("--help", ">&$closed", (141, "", "")),
        ("inspect m", ">&$closed", (141, "", "")),
        ("weights m --to onnx --output /dev/stdout", ">&$closed", (141, "", "")),
        ("weights nowhere --to onnx --output w.npz --json", ">/dev/full 2>&-", (2, "", "")),
        ("weights nowhere --to onnx --output w.npz", "2>/dev/full", (2, "", "")),
        ("weights nowhere --to onnx --output w.npz", "2>&-", (2, "", "")),
        ("weights m --to onnx --output w.npz", ">&- 2>&-", (0, "", "")),
    ],
)
def test_a_stream_that_cannot_be_written_never_looks_like_a_failed_comparison(
    onernn: Run, repo: Path, words: str, streams: str, wanted: tuple[int, str, str]
) -> None:
    assert onernn("weights m --to onnx --output wanted.npz")[0] == 0
    unbuffered = "1" if words == "--help" else ""
    started = process(repo, *words.split(), PYTHONUNBUFFERED=unbuffered)
    reader, closed = os.pipe()
    os.close(reader)
    line = f'"$@" {streams.replace("$closed", str(closed))}'
    started["args"] = ["bash", "-c", line, "", *started["args"]]
    done = subprocess.run(**started, capture_output=True, text=True, pass_fds=[closed])
    os.close(closed)
    assert (done.returncode, done.stdout, done.stderr) == wanted
    for written in Path().glob("w.npz"):
        assert written.read_bytes() == Path("wanted.npz").read_bytes()


@pytest.mark.parametrize("after", [0.1, 0.3, 0.5])
def test_an_early_interrupt_is_quiet(repo: Path, after: float) -> None:
    """From the moment on in which Python has begun with our code; before, it is Python's own."""
    waiting = process(repo, "doctor", "--full", "--threads", "1")
    waiting["args"][2] = waiting["args"][2].replace("; main()", "; print(flush=True); main()")
    heard = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}  # jobs ignore it
    with subprocess.Popen(
        **waiting, **heard, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        child.stdout.readline()
        time.sleep(after)
        child.send_signal(signal.SIGINT)
        _, stderr = child.communicate()
    assert child.returncode in (-signal.SIGINT, 130) and stderr == ""


def test_the_remaining_time_is_by_all_that_was_done_however_many_steps_come_at_once() -> None:
    left = showing._Left()
    reports = [(0, 0, 0), (5, 40, 100), (65, 50, 100), (65.01, 60, 100), (125, 70, 100)]
    wanted = ["", "", "0:05:00", "0:02:00", "0:02:00"]
    assert [left(*each) for each in reports] == wanted
    assert left(130, 3, 10) == "" and left(132, 5, 10) == "0:00:05"  # another stage


def test_the_rate_of_a_continued_scoring_leaves_out_rows_of_earlier_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[Any] = []
    rate = score_command._Rate(lambda *each: told.append(each))
    for now, report in ((100.0, (5000, 1, 9000)), (102.0, (6000, 2, 9000)), (104.0, (8000, 2, 0))):
        monkeypatch.setattr(score_command.time, "monotonic", lambda now=now: now)
        rate(*report)
    assert told[1] == ("6,000 rows, 2 rejected, 500 rows/s", 6000 / 9000, 1)
    assert told[2] == ("8,000 rows, 2 rejected, 750 rows/s", 0, 1)
