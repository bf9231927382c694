"""Models that Paddle saves in its own format of version 3, PIR, and runs, read by ours."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import paddle
import pytest
from support.interpreters import run_python

from onernn import UnsupportedError, load, verify
from onernn.adapters.paddle import optimize
from onernn.backend.process import usable_cpus

pytestmark = pytest.mark.skipif(paddle.__version__ < "3", reason="Paddle 2 has no PIR files")
IN_PIR: dict[str, Any] = {"timeout": 300, "env": os.environ | {"FLAGS_enable_pir_api": "1"}}


def test_models_saved_now_give_what_paddle_gives(tmp_path: Path, repo: Path) -> None:
    """In a process of its own: a process has one format, and the other tests want the older."""
    run_python("-m", "tests.frameworks.record_paddle_pir", tmp_path, cwd=repo, **IN_PIR)
    folders = sorted(tmp_path.iterdir())
    assert len(folders) == 3
    for folder in folders:
        report = verify(load(folder), folder / "io.npz")
        assert report.passed and report.outputs, report.outputs
        recorded = repo / "tests" / "data" / "paddle" / folder.name / "model.json"
        assert recorded.read_bytes() == (folder / "model.json").read_bytes()


ELEMENTWISE = """
import sys, zlib
import numpy as np, paddle
from paddle.nn import functional as F
class Model(paddle.nn.Layer):
    def forward(self, x):
        made = [paddle.erf(x), F.celu(x, 0.3), F.selu(x), F.selu(x, 1.2, 0.7)]
        made += [paddle.isnan(x.log()), F.thresholded_relu(x, 0.25), F.hardsigmoid(x)]
        return *made, F.hardswish(x), F.elu(x, 0.4)
model, x = Model(), np.random.default_rng(0).normal(size=(3, 4)).astype("float32")
results = [made.numpy() for made in model(paddle.to_tensor(x))]
spec = [paddle.static.InputSpec([None, 4], "float32", "x")]
paddle.jit.save(model, sys.argv[1] + "/m", input_spec=spec)
np.savez(sys.argv[1] + "/io.npz", in__x=x, **{f"out__{k}": y for k, y in enumerate(results)})
"""


def test_elementwise_operators_have_their_names_and_attributes_there(tmp_path: Path) -> None:
    script = tmp_path / "save.py"  # Paddle reads the model's source
    script.write_text(ELEMENTWISE)
    run_python(script, tmp_path, **IN_PIR)
    report = verify(load(tmp_path / "m.json"), tmp_path / "io.npz")
    assert report.passed and len(report.outputs) == 9, report.outputs


@pytest.mark.parametrize("name", ["pir_recurrent", "pir_initial_state", "pir_around"])
def test_paddle_itself_runs_them_as_the_reference(name: str, data: Path) -> None:
    """Whatever format this process has chosen."""
    folder = data / "paddle" / name
    report = verify(load(folder), folder / "io.npz", against=f"paddle:{folder}")
    assert report.passed and report.evidence is not None
    assert report.evidence.reference.who.startswith("paddle 3.")


THREADS = """
import sys
import paddle
from onernn.adapters.paddle import optimize
for ours, theirs in ((None, 1), (None, 2), (1, 2)):
    config = paddle.inference.Config(sys.argv[1])
    config.set_cpu_math_library_num_threads(theirs)
    text = open(optimize(config, threads=ours).prog_file()).read()
    print(*sorted({part[-1] for part in text.split('},"N":"threads"}')[:-1]}))
"""


@pytest.mark.skipif(usable_cpus() < 2, reason="a program has no more threads than there are CPUs")
def test_layers_of_a_config_use_as_many_threads_as_it_sets(data: Path) -> None:
    options = {**IN_PIR, "env": IN_PIR["env"] | {"OMP_NUM_THREADS": "1"}}
    run = run_python("-c", THREADS, data / "paddle" / "pir_recurrent", **options)
    assert run.stdout.split() == ["1", "2", "1"], run.stderr


def test_a_config_is_refused_where_pir_is_off(data: Path) -> None:
    """As in this process; Paddle itself fails there in the midst of its own code."""
    folder = str(data / "paddle" / "pir_recurrent")
    with pytest.raises(UnsupportedError, match="FLAGS_enable_pir_api=0: expected 1"):
        optimize(paddle.inference.Config(folder))
