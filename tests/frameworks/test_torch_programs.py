"""Programs that torch.export saves, run by ours: what PyTorch's modules give, or a refusal."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onernn

torch = pytest.importorskip("torch")
from tests.frameworks import torch_programs as programs  # noqa: E402

SIZES = [(3, 7), (2, 7), (3, 11), (5, 4), (1, 7), (7, 3), (3, 1), (1, 1)]


def exported(name: str, folder: Path, **options: Any) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(programs.program(name, **options), folder / "model.pt2")
    return folder / "model.pt2"


@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "dynamic"])
@pytest.mark.parametrize("name", programs.MODELS)
def test_a_program_gives_what_its_module_gives_at_every_size_or_refuses_it(
    name: str, dynamic: bool, tmp_path: Path
) -> None:
    session = onernn.Session(model := onernn.load(exported(name, tmp_path, dynamic=dynamic)))
    module, inputs = programs.built(name)
    tied = programs.TIED[name] - ({"N"} if dynamic else set())
    for n, t in SIZES:
        values = inputs(n, t)
        feed = {v.name: x.numpy() for v, x in zip(model.inputs, values, strict=True)}
        if ("N" in tied and n != programs.BATCH) or ("T" in tied and t != programs.STEPS):
            with pytest.raises(onernn.ShapeError):
                session.run(feed)
            continue
        with torch.no_grad():
            wanted = programs.flat(module(*values))
        found = list(session.run(feed).values())
        assert len(found) == len(wanted)
        for ours, theirs in zip(found, wanted, strict=True):
            assert ours.dtype == theirs.dtype
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize(
    "name", ["tagger", "rows", "textline", "mean_over_its_length", "translator"]
)
def test_pytorch_itself_is_a_reference_for_its_file(name: str, tmp_path: Path) -> None:
    file = exported(name, tmp_path)
    assert onernn.verify(file, against=f"torch:{file}")


@pytest.mark.parametrize("save", [programs.save_as_2_5, programs.save_as_2_8])
def test_older_layouts_are_such_as_pytorch_reads(save: Any, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        save(programs.program("tagger"), tmp_path / "model.pt2")
    module, inputs = programs.built("tagger")
    values = inputs(programs.BATCH, programs.STEPS)
    theirs = torch.export.load(tmp_path / "model.pt2").module()(*values).detach().numpy()
    session = onernn.Session(tmp_path / "model.pt2")
    (ours,) = session.run({"x": values[0].numpy()}).values()
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("name", ["last", "projected", "translator"])
def test_a_live_module_is_a_reference(name: str, tmp_path: Path) -> None:
    module, _ = programs.built(name)
    assert onernn.verify(exported(name, tmp_path), against=module)
    with torch.no_grad():
        next(module.parameters()).add_(0.5)
    assert not onernn.verify(tmp_path / "model.pt2", against=module, diagnose=False)


def test_states_of_a_live_layer_come_as_it_takes_them(tmp_path: Path) -> None:
    layer = torch.nn.LSTM(3, 2).eval()
    example = (torch.zeros(5, 2, 3), (torch.zeros(1, 2, 2), torch.zeros(1, 2, 2)))
    torch.export.save(torch.export.export(layer, example), tmp_path / "model.pt2")
    assert onernn.verify(tmp_path / "model.pt2", against=layer)


def test_an_object_of_no_framework_is_no_reference() -> None:
    with pytest.raises(onernn.UnsupportedError, match=r"live module, got builtins\.dict"):
        onernn.verify(programs.DATA / "rows" / "model.pt2", against={})


class Branch(torch.nn.Module):  # type: ignore[misc,name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.GRU(4, 3, batch_first=True)

    def forward(self, x: Any) -> Any:
        y, _ = self.layer(x)
        return y * 2.5 if x.shape[0] > 3 else y


def test_a_size_beyond_the_branch_that_was_exported_is_refused(tmp_path: Path) -> None:
    """torch.export takes the branch of its example, and says for which sizes that is right."""
    module, shapes = Branch().eval(), ({0: torch.export.Dim.AUTO},)
    program = torch.export.export(module, (torch.randn(5, 7, 4),), dynamic_shapes=shapes)
    torch.export.save(program, tmp_path / "model.pt2")
    session = onernn.Session(tmp_path / "model.pt2")
    for _ in range(2):  # the second run has a plan
        x = torch.randn(6, 7, 4)
        (found,) = session.run({"x": x.numpy()}).values()
        np.testing.assert_allclose(found, module(x).detach().numpy(), rtol=1e-5, atol=2e-6)
        with pytest.raises(onernn.ShapeError, match="axis 0 is 3, the model takes 4 to inf"):
            session.run({"x": x[:3].numpy()})


class Overwritten(torch.nn.Module):  # type: ignore[misc,name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.GRU(4, 3, batch_first=True)

    def forward(self, x: Any) -> Any:
        y, _ = self.layer(x)
        y[:, 0] *= 2
        return y


def test_a_tensor_that_is_changed_in_its_place_is_refused(tmp_path: Path) -> None:
    """Nobody reads what the operator gives: the change is in what was there before."""
    program = torch.export.export(Overwritten().eval(), (torch.randn(5, 7, 4),))
    torch.export.save(program, tmp_path / "model.pt2")
    with pytest.raises(onernn.UnsupportedError, match="in its place that others may read"):
        onernn.load(tmp_path / "model.pt2")
