"""Programs that torch.export saves, run by ours: what PyTorch's modules give, or a refusal."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from numpy.testing import assert_allclose, assert_array_equal

import onernn

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402
from tests.frameworks import torch_programs as programs  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
SIZES = [(3, 7), (2, 7), (3, 11), (5, 4), (1, 7), (7, 3), (3, 1), (1, 1)]


def exported(name: str, folder: Path, **options: Any) -> Path:
    return saved(programs.program(name, **options), folder)


def saved(program: Any, folder: Path) -> Path:
    torch.export.save(program, folder / "model.pt2")
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
            assert_allclose(ours, theirs, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize(
    "name", ["tagger", "rows", "textline", "mean_over_its_length", "translator"]
)
def test_pytorch_itself_is_a_reference_for_its_file(name: str, tmp_path: Path) -> None:
    file = exported(name, tmp_path)
    assert onernn.verify(file, against=f"torch:{file}")


def test_an_audit_names_the_operator_that_fixes_the_time(tmp_path: Path) -> None:
    found = [
        finding.text
        for name in programs.MODELS
        if "T" in programs.TIED[name]
        for finding in onernn.audit(exported(name, tmp_path)).findings
        if finding.fault == "fixed_time" and "so does it here" in finding.text
    ]
    assert any(re.search(r"so does it here: .*axis \d must be 7: '", text) for text in found)
    assert not [text for text in found if text.endswith(": ")]


@pytest.mark.parametrize("save", [programs.save_as_2_5, programs.save_as_2_8])
def test_older_layouts_are_such_as_pytorch_reads(save: Any, tmp_path: Path) -> None:
    save(programs.program("tagger"), tmp_path / "model.pt2")
    module, inputs = programs.built("tagger")
    values = inputs(programs.BATCH, programs.STEPS)
    theirs = torch.export.load(tmp_path / "model.pt2").module()(*values).detach().numpy()
    session = onernn.Session(tmp_path / "model.pt2")
    (ours,) = session.run({"x": values[0].numpy()}).values()
    assert_allclose(ours, theirs, rtol=1e-5, atol=2e-6)


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
    assert onernn.verify(saved(torch.export.export(layer, example), tmp_path), against=layer)


def test_an_object_of_no_framework_is_no_reference() -> None:
    with pytest.raises(onernn.UnsupportedError, match=r"builtins\.dict"):
        onernn.verify(programs.DATA / "rows" / "model.pt2", against={})


@programs.module(layer=lambda: torch.nn.GRU(4, 3, batch_first=True))
def branch(self: Any, x: Any) -> Any:
    y, _ = self.layer(x)
    return y * 2.5 if x.shape[0] > 3 else y


def test_a_size_beyond_the_branch_that_was_exported_is_refused(tmp_path: Path) -> None:
    """torch.export takes the branch of its example, and says for which sizes that is right."""
    module, shapes = branch().eval(), ({0: torch.export.Dim.AUTO},)
    program = torch.export.export(module, (torch.randn(5, 7, 4),), dynamic_shapes=shapes)
    session = onernn.Session(saved(program, tmp_path))
    for _ in range(2):  # the second run has a plan
        x = torch.randn(6, 7, 4)
        (found,) = session.run({"x": x.numpy()}).values()
        assert_allclose(found, module(x).detach().numpy(), rtol=1e-5, atol=2e-6)
        with pytest.raises(onernn.ShapeError, match="axis 0 is 3"):
            session.run({"x": x[:3].numpy()})


def checked(session: onernn.Session, module: Any, *inputs: Any, atol: float = 2e-6) -> None:
    """Runs inputs in both; tolerances as in the tests of all programs."""
    feed = {v.name: x.numpy() for v, x in zip(session.inputs, inputs, strict=True)}
    found = session.run(feed)
    with torch.no_grad():
        wanted = programs.flat(module(*inputs))
    for ours, theirs in zip(found.values(), wanted, strict=True):
        assert ours.shape == theirs.shape
        assert_allclose(ours, theirs, rtol=1e-5, atol=atol)


@programs.module(layer=lambda: torch.nn.GRU(4, 3, batch_first=True))
def overwritten(self: Any, x: Any) -> Any:
    y, _ = self.layer(x)
    y[:, 0] *= 2.3
    return y


def test_a_part_that_is_changed_in_its_place_is_refused_and_the_advice_works(
    tmp_path: Path,
) -> None:
    """Nobody reads what the operator gives: the change is in what was there before."""
    module, x = overwritten().eval(), torch.randn(5, 7, 4)
    program = torch.export.export(module, (x,))
    advice = r"mul_.*save exported\.run_decompositions\(\{\}\)"
    with pytest.raises(onernn.UnsupportedError, match=advice):
        onernn.load(saved(program, tmp_path))
    checked(onernn.Session(saved(program.run_decompositions({}), tmp_path)), module, x)


@programs.module()
def input_overwritten(self: Any, x: Any) -> Any:
    x[x > 0] = 0.0
    return x.cumsum(1)


def test_an_input_that_is_changed_is_refused_by_its_name(tmp_path: Path) -> None:
    program = torch.export.export(input_overwritten().eval(), (torch.randn(5, 7, 4),))
    for each in (program, program.run_decompositions({})):
        with pytest.raises(onernn.UnsupportedError, match=r"changes 'x'.*x = x\.clone\(\)"):
            onernn.load(saved(each, tmp_path))


def keeps_states(write: Any) -> Any:
    """A model whose buffer h is written by a function of it and the new state."""

    def forward(self: Any, x: Any) -> Any:
        y, h = self.layer(x, self.h)
        write(self, h)
        return y

    parts = {
        "layer": lambda: torch.nn.GRU(4, 8),
        "h": lambda: torch.nn.Buffer(torch.zeros(1, 2, 8)),
    }
    return programs.module(**parts)(forward)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "write",
    [
        lambda self, h: self.h.copy_(h),
        lambda self, h: setattr(self, "h", h),
        lambda self, h: self.h.mul_(0.3).add_(h),
    ],
    ids=["copied", "assigned", "smoothed"],
)
def test_a_buffer_that_is_changed_is_refused_and_the_manual_s_wrapper_works(
    write: Any, tmp_path: Path
) -> None:
    x, h = torch.randn(5, 2, 4), torch.zeros(1, 2, 8)
    program = torch.export.export(keeps_states(write)().eval(), (x,))
    for each in (program, program.run_decompositions({})):
        with pytest.raises(onernn.UnsupportedError, match=r"changes 'h'.*Models that keep states"):
            onernn.load(saved(each, tmp_path))
    page = Path(__file__).parents[2] / "docs" / "tutorials" / "torch.md"
    (source,) = re.findall(r"class WithStates.*?(?=\n\n\n)", page.read_text(), re.DOTALL)
    names: dict[str, Any] = {"torch": torch}
    exec(source, names)
    torch.manual_seed(0)
    module = keeps_states(write)().eval()
    session = onernn.Session(
        saved(torch.export.export(names["WithStates"](module, "h"), (x, h)), tmp_path)
    )
    state = h.numpy()
    for _ in range(3):
        x = torch.randn(5, 2, 4)
        names = [value.name for value in session.inputs]
        y, state = session.run(dict(zip(names, (x.numpy(), state), strict=True))).values()
        assert_allclose(y, module(x).detach().numpy(), rtol=1e-5, atol=2e-6)


SPECTRA: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "centred": ({"n_fft": 16, "hop_length": 4, "window": "hann"}, {}),
    "uneven": ({"n_fft": 14, "hop_length": 9, "win_length": 12, "window": "hamming"}, {}),
    "alone": (
        {"n_fft": 12, "hop_length": 5, "window": "hamming", "normalized": True, "center": False},
        {},
    ),
    "all_frequencies": ({"n_fft": 12, "hop_length": 5, "onesided": False}, {}),
    "cut": ({"n_fft": 16, "hop_length": 4, "window": "hann"}, {"length": 29}),
    "filled": ({"n_fft": 16, "hop_length": 4, "window": "hann"}, {"length": 300}),
}
"""Arguments of torch.stft, and further ones of torch.istft."""


def transformed(name: str) -> Any:
    options, more = SPECTRA[name]
    length = options.get("win_length", options["n_fft"])
    windows = {"hann": torch.hann_window(length), "hamming": torch.hamming_window(length)}

    def forward(self: Any, x: Any) -> Any:
        given = {k: self.window if k == "window" else v for k, v in options.items()}
        spectrum = torch.stft(x, return_complex=True, **given)
        return spectrum.abs(), torch.istft(spectrum, **given, **more)

    window = windows.get(options.get("window", ""), torch.ones(length))
    return programs.module(window=lambda: torch.nn.Buffer(window))(forward)().eval()


@pytest.mark.parametrize("name", SPECTRA)
def test_signals_are_transformed_and_back_at_every_length(name: str, tmp_path: Path) -> None:
    """Of one signal and of several; a length of the result ties that of the signal.

    A signal that only the end of one window covers is divided by that end, with the rounding.
    """
    module, auto = transformed(name), torch.export.Dim.AUTO
    ends = 1.0 if SPECTRA[name][0].get("center", True) else float(module.window.min())
    check = partial(checked, atol=2e-6 / ends)
    for shape in ((100,), (3, 100)):
        x = torch.randn(shape)
        sizes = None if "length" in SPECTRA[name][1] else ({len(shape) - 1: auto},)
        program = torch.export.export(module, (x,), dynamic_shapes=sizes)
        session = onernn.Session(saved(program, tmp_path))
        check(session, module, x)
        for length in (37, 52) if sizes else ():
            check(session, module, torch.randn(*shape[:-1], length))


def test_a_window_whose_squares_add_up_to_nothing_is_refused(tmp_path: Path) -> None:
    @programs.module(window=lambda: torch.nn.Buffer(torch.hann_window(16)))
    def back(self: Any, re: Any, im: Any) -> Any:
        return torch.istft(torch.complex(re, im), 16, 16, window=self.window)

    parts = (torch.randn(2, 9, 5), torch.randn(2, 9, 5))
    with pytest.raises(RuntimeError, match="window overlap add min"):
        back()(*parts)
    program = torch.export.export(back().eval(), parts)
    with pytest.raises(onernn.UnsupportedError, match="sums of its squares"):
        onernn.Session(saved(program, tmp_path))


def test_complex_outputs_and_operators_without_a_rule_for_them_are_refused(tmp_path: Path) -> None:
    def forward(change: Any) -> Any:
        return programs.module()(lambda self, x: change(torch.complex(x, x)))().eval()

    x = (torch.randn(3, 5),)
    with pytest.raises(onernn.UnsupportedError, match=r"output 0 is complex64.*view_as_real"):
        onernn.load(saved(torch.export.export(forward(lambda z: z), x), tmp_path))
    program = torch.export.export(forward(lambda z: z.exp().abs()), x)
    with pytest.raises(onernn.UnsupportedError, match=r"exp.*complex64: expected real numbers"):
        onernn.Session(saved(program, tmp_path))


def test_a_pool_of_open_sizes_keeps_the_axis_that_it_does_not_name(tmp_path: Path) -> None:
    @programs.module()
    def across(self: Any, x: Any) -> Any:
        return torch.nn.functional.adaptive_avg_pool2d(x, (None, 1))

    auto, module = torch.export.Dim.AUTO, across().eval()
    program = torch.export.export(
        module, (torch.randn(2, 3, 7, 4),), dynamic_shapes=({0: auto, 2: auto},)
    )
    session = onernn.Session(saved(program, tmp_path))
    for steps in (7, 2, 11):
        checked(session, module, torch.randn(2, 3, steps, 4))


ODD = torch.tensor([torch.nan, -0.0, 0, 0.5, 2.5, -3, torch.inf, -torch.inf])
WHOLE = torch.arange(6).reshape(2, 3)


@pytest.mark.parametrize(
    "function, x",
    [
        (torch.sign, ODD),
        (torch.sgn, ODD.double()),
        (torch.sign, WHOLE.int() - 2),
        (torch.round, ODD),
        (torch.round, WHOLE.int()),
        (lambda x: torch.select_scatter(x, 2.5 * x[0], 0, 1), WHOLE),
        (lambda x: torch.slice_scatter(x, 2 * x[:1], 0, 0, 1), WHOLE > 2),
        (lambda x: torch.einsum("ij,k->ijk", x.half(), x[0]), WHOLE),
    ],
)
def test_numbers_that_are_none_and_mixed_dtypes_give_pytorchs(
    function: Any, x: Any, tmp_path: Path
) -> None:
    module = programs.module()(lambda self, x: function(x))()
    session = onernn.Session(saved(torch.export.export(module, (x,)), tmp_path))
    (found,) = session.run({"x": x.numpy()}).values()
    assert found.dtype == function(x).numpy().dtype
    assert_array_equal(found, function(x).numpy())


SIGNED = torch.tensor([[5.0, -5, 5, -5, 0, 1, -0.7], [3.0, 3, -3, -3, 2, 0.1, 0.1]])
BOTH = torch.tensor([[7, -7, 7, -7, 0, 2**62], [3, 3, -3, -3, 5, -1]])
NONE = torch.tensor([torch.nan, 2.0, 2.0, torch.inf, -torch.inf, 1.0, torch.nan])
PLACES = torch.tensor([[0, 2, 0], [1, 1, 2]])
LIST = torch.tensor([-1.0, 0, 0, 2])


def divided(x: Any) -> Any:
    """All quotients and remainders of two rows."""
    a, b = x
    rounded = [torch.div(a, b, rounding_mode=mode) for mode in ("floor", "trunc")]
    return *rounded, a // b, a % b, torch.fmod(a, b), a // 2, 7 % b, torch.remainder(a, -3)


def all_or_any(x: Any) -> Any:
    return x.any(), x.all(-1), x.any(0, keepdim=True), x.all((0, 1)), x.count_nonzero(0)


@pytest.mark.parametrize(
    "function, x",
    [
        (divided, SIGNED),
        (divided, BOTH),
        (divided, BOTH.int()),
        (divided, torch.tensor([[1.0, -1, 0, torch.inf, 2], [0.0, torch.inf, -2, 2, torch.nan]])),
        (lambda x: (x.isfinite(), x.isinf(), x.isneginf(), x.isposinf()), ODD),
        (lambda x: (x.isfinite(), x.isinf(), x.isneginf(), x.isposinf()), WHOLE),
        (lambda x: (torch.nan_to_num(x), torch.nan_to_num(x, 0.5, 1.5, -2.5)), NONE),
        (all_or_any, SIGNED / SIGNED - 1),
        (all_or_any, BOTH.to(torch.uint8)),
        (lambda x: (x.all(), x.any(), *all_or_any(x[:, None])[1:3]), BOTH[:0].to(torch.uint8)),
        (lambda x: (x == 2, x < 2, x >= -1, x > 0.5, x != 1, x <= True), WHOLE > 2),
        (lambda x: (x.diff(), x.diff(2, 0, append=x), torch.tensordot(x, x, [[0], [-2]])), WHOLE),
        (lambda x: [F.l1_loss(x[0], x[1], reduction=how) for how in ("none", "sum")], SIGNED * 4),
        (lambda x: (F.mse_loss(x[0], x[1]), F.mse_loss(x[0], x[1], reduction="none")), BOTH / 8),
        (lambda x: (x.norm(), x.norm(p=1), x.norm(p=-torch.inf)), SIGNED[0, 1]),
        (lambda x: (*x.cummax(-1), *x.cummin(-1)), NONE),
        (lambda x: (*x.cummax(1), *x.cummin(0), x.cumprod(1)), WHOLE.int() - 2),
        (lambda x: (x.cumsum(0), x.cumprod(0), *x.cummax(0), *x.sort(), x.argsort()), NONE[3]),
        (lambda x: (*x.sort(stable=True), *x.sort(-1, True), x.cumprod(-1)), NONE),
        (
            lambda x: (*torch.sort(x, stable=True, dim=0), x.argsort(-1, True)),
            BOTH > 0,
        ),
        (lambda x: [torch.searchsorted(LIST, x, right=side) for side in (False, True)], NONE),
        (lambda x: [torch.bucketize(x, LIST.long(), right=side) for side in (False, True)], WHOLE),
        (lambda x: (x.nansum(), x.nanmean(0), *torch.aminmax(x), x.norm(p=torch.inf)), NONE),
        (lambda x: [x.scatter_reduce(1, PLACES, 3 - x, how) for how in ("amax", "prod")], WHOLE),
        (lambda x: x.scatter(1, PLACES, 2, reduce="multiply"), WHOLE),
        (lambda x: x.index_fill(1, PLACES[0], 7).index_copy(1, PLACES[0, :2], x[:, :2]), WHOLE),
        (lambda x: x.repeat_interleave(PLACES[0], 1), WHOLE),
        (lambda x: (x.roll(4), x.roll((1, -7), (0, 1)), x.unfold(1, 2, 1)), WHOLE),
        (lambda x: (x[:, x[0] > 0], x.nonzero(), x.masked_select(x[0] > 0)), WHOLE),
        (lambda x: torch.var_mean(x[:, :0], 1), SIGNED),
        (lambda x: F.max_pool1d(x[None], 3, 2, 1, return_indices=True), SIGNED),
        (lambda x: F.interpolate(x[None], size=11), SIGNED),
        (lambda x: (x.clamp(x[:1], x[1:]), torch.addcmul(x, x, x, value=-3)), BOTH),
    ],
)
def test_signs_integers_nan_and_empty_axes_give_pytorchs(
    function: Any, x: Any, tmp_path: Path
) -> None:
    module = programs.module()(lambda self, x: tuple(function(x)))()
    session = onernn.Session(saved(torch.export.export(module, (x,)), tmp_path))
    found, wanted = session.run({"x": x.numpy()}), programs.flat(module(x))
    for ours, theirs in zip(found.values(), wanted, strict=True):
        assert ours.dtype == theirs.dtype
        assert_array_equal(ours, theirs)


@pytest.mark.parametrize("axes", [(), (1,)], ids=["matrices", "heads"])
def test_a_query_that_may_read_no_key_gives_zeros(axes: Any, tmp_path: Path) -> None:
    @programs.module()
    def attended(self: Any, x: Any, mask: Any) -> Any:
        return F.scaled_dot_product_attention(x, x, x, mask), torch.softmax(x * 0 - 99.0, -1)

    x, mask = torch.randn(2, *axes, 5, 4), torch.ones(2, *axes, 5, 5).tril(-1) > 0
    module = attended().eval()
    for each in (mask, torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)):
        program = torch.export.export(module, (x, each))
        for file in (saved(program, tmp_path), saved(program.run_decompositions(), tmp_path)):
            checked(onernn.Session(file), module, x, each)


def exported_for_7_steps(function: Any, folder: Path, *dynamic: int) -> tuple[Any, Path]:
    module = programs.module()(lambda self, x: function(x))().eval()
    sizes = ({axis: torch.export.Dim.AUTO for axis in dynamic},)
    return module, saved(
        torch.export.export(module, (torch.randn(3, 7, 6),), dynamic_shapes=sizes), folder
    )


@pytest.mark.parametrize("dynamic", [(), (0,)], ids=["fixed", "dynamic"])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.sum(1) / (x.shape[1] * x.shape[2]),
        lambda x: x.topk(x.shape[1] // 2, 1)[0],
        lambda x: F.one_hot(x.argmax(1), x.shape[1]),
        lambda x: x.roll(x.shape[1] // 2, 1),
        lambda x: F.pad(x, (0, 0, 0, 12 - x.shape[1])),
        lambda x: torch.zeros(len(x), x.shape[1]).scatter(1, x.argmax(1)[:, :1], 1.0),
    ],
)
def test_a_number_that_may_come_from_the_steps_fixes_them(
    function: Any, dynamic: Any, tmp_path: Path
) -> None:
    _, file = exported_for_7_steps(function, tmp_path, *dynamic)
    assert onernn.load(file).inputs[0].shape[1] == 7


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x[:, : x.shape[1] // 2], x[:, x.shape[1] - 1], x.narrow(1, 1, x.shape[1] - 1)),
        lambda x: (x * (1 / x.shape[1]), x / x.shape[1] ** 0.5, x.topk(x.shape[1] // 2, 1)[0]),
        lambda x: (x.argmax(1).clamp(max=x.shape[1] - 2), F.pad(x, (0, 0, 0, 20 - x.shape[1]))),
        lambda x: x.reshape(-1, 6).unflatten(0, (x.shape[0], -1)),
    ],
)
def test_numbers_computed_from_dynamic_sizes_give_pytorchs(function: Any, tmp_path: Path) -> None:
    module, file = exported_for_7_steps(function, tmp_path, 0, 1)
    session = onernn.Session(file)
    for steps in (7, 4, 12):
        checked(session, module, torch.randn(2, steps, 6))
