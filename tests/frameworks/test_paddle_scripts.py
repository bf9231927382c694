"""Programs as Paddle's users write them: with onernn in them they give what they gave without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
from tests.frameworks.paddle_nets import OURS, all_close, close, served
from tests.frameworks.paddle_scripts import KINDS, RNG, I, O, X, nn, script

import onernn
from onernn.adapters.paddle import restore

pytestmark = pytest.mark.usefixtures("dynamic_mode")


@pytest.mark.parametrize("kind", KINDS)
def test_a_script_gives_what_it_gave(kind: Any) -> None:
    all_close(script(kind, OURS), script(kind, lambda net: net))


@pytest.mark.skipif(paddle.__version__ >= "3", reason="compiled as PIR: paddle_jit_cases.py")
@pytest.mark.parametrize("kind", KINDS[:3])
def test_a_network_that_ran_compiled_is_saved_and_served(kind: Any, tmp_path: Path) -> None:
    served(kind, tmp_path)


class Decoder(nn.Layer):
    def __init__(self, ends: bool, reads_scores: bool) -> None:
        super().__init__()
        drawn = nn.initializer.Normal()
        self.transitions = self.create_parameter((5, 5), default_initializer=drawn)
        self.decoder = paddle.text.ViterbiDecoder(self.transitions, ends)
        self.reads_scores = reads_scores

    def forward(self, emissions: Any, lengths: Any) -> Any:
        both = self.decoder(emissions, lengths)
        return both if self.reads_scores else both[1]


@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("reads_scores", [True, False])
def test_viterbi_paths_are_read(ends: bool, reads_scores: bool, tmp_path: Path) -> None:
    net, lengths = Decoder(ends, reads_scores), np.array([4, 1, 3])
    emissions = RNG.normal(size=(3, 6, 5)).astype(np.float32)
    spec = [
        paddle.static.InputSpec([None, None, 5], "float32", "emissions"),
        paddle.static.InputSpec([None], "int64", "lengths"),
    ]
    paddle.jit.save(net, str(tmp_path / "m"), input_spec=spec)
    if reads_scores:
        with pytest.raises(onernn.UnsupportedError, match="Scores is not computed"):
            onernn.Session(tmp_path / "m")
        return
    theirs = net(paddle.to_tensor(emissions), paddle.to_tensor(lengths)).numpy()
    session = onernn.Session(tmp_path / "m")
    (ours,) = session.run({"emissions": emissions, "lengths": lengths}).values()
    np.testing.assert_array_equal(ours, theirs)


def test_a_program_that_was_optimized_is_saved_as_it_was(tmp_path: Path) -> None:
    """It would call a function of this process."""
    paddle.enable_static()
    main, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(main, startup):
        x = paddle.static.data("x", [None, None, I])
        y = nn.GRU(I, O)(x)[0]
    if not hasattr(main, "desc"):
        pytest.skip("programs of PIR change in place")
    with paddle.static.scope_guard(paddle.static.Scope()):
        executor = paddle.static.Executor()
        executor.run(startup)
        ours = OURS(main.clone(for_test=True), fetch_list=[y])
        (before,) = executor.run(ours, feed={"x": X}, fetch_list=[y.name])
        assert {"onernn_part"} & {op.type for op in ours.global_block().ops}
        more = ours.clone(for_test=True)
        with paddle.static.program_guard(more):
            twice = paddle.scale(more.global_block().var(y.name), 2.0)
        programs = (ours, y.name, 1), (ours.clone(), y.name, 1), (more, twice.name, 2)
        for number, (program, name, factor) in enumerate(programs):
            theirs, prefix = restore(program), str(tmp_path / f"m{number}")
            assert "rnn" in {op.type for op in theirs.global_block().ops}
            close(executor.run(theirs, feed={"x": X}, fetch_list=[name])[0], factor * before)
            find = program.global_block().var
            paddle.static.save_inference_model(
                prefix, [find("x")], [find(name)], executor, program=program
            )
            loaded, _, fetched = paddle.static.load_inference_model(prefix, executor)
            assert "rnn" in {op.type for op in loaded.global_block().ops}
            close(executor.run(loaded, feed={"x": X}, fetch_list=fetched)[0], factor * before)
            close(*onernn.Session(prefix).run({"x": X}).values(), factor * before)
            paddle.static.save(program, prefix)
            paddle.save(program, f"{prefix}_whole.pdmodel")
            for file in (f"{prefix}.pdmodel", f"{prefix}_whole.pdmodel"):
                again = paddle.static.Program.parse_from_string(Path(file).read_bytes())
                assert "rnn" in {op.type for op in again.global_block().ops}
            weights = paddle.load(f"{prefix}.pdparams")
            assert sorted(weights) == sorted(each.name for each in main.all_parameters())
