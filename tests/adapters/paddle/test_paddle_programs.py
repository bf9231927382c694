"""Programs that import Paddle, run as they are in processes of their own."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from support.interpreters import run_python

from onernn import UnsupportedError
from onernn.paddle import run_program

TAGGER = """
import sys
import numpy as np
import paddle
import paddle.fluid as fluid
from paddle.fluid.core import AnalysisConfig, PaddleTensor, create_paddle_predictor
from paddle.inference import Config, create_predictor

model = sys.argv[1]
config = Config(model + ".pdmodel", model + ".pdiparams")
config.disable_gpu()
config.enable_memory_optim()
predictor = create_predictor(config)
letters = predictor.get_input_handle(predictor.get_input_names()[0])
letters.copy_from_cpu(np.arange(1, 8))
letters.set_lod([[0, 3, 7]])
predictor.run()
tags = predictor.get_output_handle(predictor.get_output_names()[1]).copy_to_cpu()

(again,) = create_paddle_predictor(AnalysisConfig(config)).run(
    [PaddleTensor(np.arange(1, 8), lod=[[0, 3, 7]])]
)[1:]
assert again.data.int64_data() == tags.ravel().tolist()

exe = fluid.Executor(fluid.CPUPlace())
exe.run(fluid.default_startup_program())
with fluid.scope_guard(fluid.core.Scope()):
    program, feeds, fetches = paddle.static.load_inference_model(model, exe)
    fed = fluid.create_lod_tensor(np.arange(1, 8), [[3, 4]], fluid.CPUPlace())
    found = exe.run(program, feed={feeds[0]: fed}, fetch_list=fetches, return_numpy=False)
assert np.array_equal(found[1], tags) and found[1].lod() == [[0, 3, 7]]
print(paddle.__version__, __name__, *sys.argv[2:])
print(paddle.onernn)
"""


def python(
    folder: Path, *arguments: str, expected: int = 0, statement: str | None = None
) -> subprocess.CompletedProcess[str]:
    statements = ["-c", statement] if statement else []
    return run_python(*statements, *arguments, cwd=folder, status=expected)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "beside.py").write_text("NAME = 'beside'\n")
    (tmp_path / "tagger.py").write_text("import beside\n" + TAGGER)
    return tmp_path


@pytest.mark.parametrize(
    "way, program",
    [("-m onernn.cli paddle-run", "-m tagger"), ("-m onernn.paddle", "tagger.py")],
)
def test_an_unmodified_program_runs(way: str, program: str, folder: Path, repo: Path) -> None:
    model = str(repo / "examples" / "segmenter" / "model")
    done = python(folder, *way.split(), *program.split(), model, "--help", "-m")
    assert done.stdout.splitlines()[0] == "2.6.2 __main__ --help -m"
    assert done.stdout.splitlines()[1].startswith("onernn ")


def test_nothing_is_active_unasked(tmp_path: Path) -> None:
    statement = """
import onernn.adapters.paddle.inference, onernn.paddle, importlib.util
assert importlib.util.find_spec("paddle") is None
"""
    python(tmp_path, statement=statement)


ABSENT = {
    "import paddle.vision.models": "ImportError: paddle.vision is not supported",
    "from paddle import vision": "ImportError: paddle.vision is not supported",
    "from paddle.nn import GRU": "ImportError: paddle.nn.GRU is not supported",
    "paddle.nn.Layer": "AttributeError: paddle.nn.Layer is not supported",
    "from paddle.fluid.initializer import X": "ImportError: paddle.fluid.initializer is",
    "paddle.fluid.layers.fc()": "AttributeError: paddle.fluid.layers is not supported",
    "paddle.inference.XpuConfig()": "(there are no XPUs here)",
    "paddle.CUDAPlace(0)": "UnsupportedError: CUDAPlace: onernn runs on CPUs only",
    "paddle.set_device('gpu')": "onernn runs on CPUs only",
}
ASKS = """
import pathlib, runpy, sys, traceback
for line in pathlib.Path("lines").read_text().splitlines():
    pathlib.Path("asks.py").write_text("import paddle\\n\\n\\n" + line)
    try:
        runpy.run_path("asks.py")
    except Exception as error:
        print(*traceback.format_exception_only(error), end="")
"""


def test_what_is_not_here_names_itself_and_who_asked(tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("\n".join(ABSENT))
    (tmp_path / "program.py").write_text(ASKS)
    done = python(tmp_path, "-m", "onernn.paddle", "program.py")
    for (line, told), said in zip(ABSENT.items(), done.stdout.splitlines(), strict=True):
        assert told in said, line
        if "is not supported" in told:
            assert "asks.py, line 4" in said


def test_a_program_asks_whether_a_name_is_there(tmp_path: Path) -> None:
    (tmp_path / "asks.py").write_text(
        "import paddle\n"
        "assert not hasattr(paddle, 'vision') and hasattr(paddle.inference, 'Config')\n"
        "import paddle.nn.functional as F\n"
        "try:\n    import paddle.vision\nexcept ImportError:\n    print('none')\n"
    )
    assert python(tmp_path, "-m", "onernn.paddle", "asks.py").stdout == "none\n"


def test_an_installed_paddle_is_replaced_only_when_that_is_asked(tmp_path: Path) -> None:
    (tmp_path / "paddle.py").write_text("__version__ = '9'\n")
    (tmp_path / "tells.py").write_text("import paddle\nprint(paddle.__version__)\n")
    refused = python(tmp_path, "-m", "onernn.cli", "paddle-run", "tells.py", expected=2)
    assert "'paddle' is installed here" in refused.stderr and "Traceback" not in refused.stderr
    replaced = python(tmp_path, "-m", "onernn.cli", "paddle-run", "--replace", "tells.py")
    assert replaced.stdout == "2.6.2\n"
    statement = """
import paddle, onernn.adapters.paddle.inference as inference
try:
    inference.install(replace=True)
except Exception as error:
    print(error)
"""
    assert "imported already" in python(tmp_path, statement=statement).stdout


@pytest.mark.parametrize("arguments", [[], ["--replace"], ["-m"], ["none.py"]])
def test_a_program_that_is_not_there_is_told(arguments: list[str]) -> None:
    with pytest.raises(UnsupportedError, match=r"no such file: none\.py|no program given"):
        run_program(arguments)


def test_an_error_of_ours_has_no_traceback(tmp_path: Path) -> None:
    done = python(tmp_path, "-m", "onernn.paddle", "none.py", expected=2)
    assert "no such file: none.py" in done.stderr and "Traceback" not in done.stderr


def test_a_programs_own_errors_and_exits_are_its_own(tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text("raise ValueError('of the program')\n")
    (tmp_path / "exits.py").write_text("import sys\nsys.exit(5)\n")
    for way in ("onernn.paddle", "onernn.cli paddle-run"):
        done = python(tmp_path, "-m", *way.split(), "fails.py", expected=1)
        assert "fails.py" in done.stderr and "ValueError: of the program" in done.stderr
        python(tmp_path, "-m", *way.split(), "exits.py", expected=5)
