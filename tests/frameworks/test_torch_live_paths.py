"""Every path into an optimized module does what PyTorch's own module does, or raises its error."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from tests.frameworks.torch_modules import (
    INPUT,
    UNITS,
    N,
    T,
    assert_close,
    make_batch,
    make_pair,
    make_sequences,
    one_thread,
    small_batches_run_here,
    tensors,
)
from torch import Tensor, nn
from torch.autograd import forward_ad, functional, grad
from torch.nn.utils.rnn import PackedSequence, pack_sequence, unpack_sequence

from onernn.adapters.torch import explain, optimize

__all__ = ["one_thread", "small_batches_run_here"]  # fixtures
pytestmark = pytest.mark.usefixtures("one_thread", "small_batches_run_here")


class Watched(Tensor):
    """A subclass, which may see each operator."""


def packed(**changes: Any) -> PackedSequence:
    sequences = [torch.ones(t, INPUT) / (t + 1) for t in (2, 5, 1)]
    return pack_sequence(sequences, enforce_sorted=False)._replace(**changes)


def arguments(module: Any) -> dict[str, tuple[Any, ...]]:
    """Right and wrong arguments of a module of one layer."""
    x, is_lstm = torch.linspace(-1, 1, T * N * INPUT).reshape(T, N, INPUT), type(module) is nn.LSTM

    def states(*shape: int, **more: Any) -> Any:
        h = torch.full(shape, 0.5, **more)
        return (h, h) if is_lstm else h

    fit = 1, N, UNITS
    return {
        "x": (x,),
        "states": (x, states(*fit)),
        "another batch size": (x, states(1, N + 1, UNITS)),
        "a batch of one": (x, states(1, 1, UNITS)),
        "another width": (x, states(1, N, UNITS - 1)),
        "another rank": (x, states(N, UNITS)),
        "states in float64": (x, states(*fit, dtype=torch.float64)),
        "states without memory": (x, states(*fit, device="meta")),
        "expanded states": (x, states(1, 1, 1)),
        "states without a batch": (x[:, 0], states(1, N, UNITS)),
        "x in float64": (x.double(),),
        "another width of x": (x[..., 1:],),
        "another rank of x": (x[None],),
        "states without layers": (x, states(UNITS)),
        "no step": (x[:0],),
        "strides": (x.transpose(0, 1), states(1, T, UNITS)),
        "a subclass": (x.as_subclass(Watched),),
        "packed": (packed(), states(*fit)),
        "packed, another batch size": (packed(), states(1, N + 2, UNITS)),
        "packed, too few in order": (packed(sorted_indices=torch.tensor([0])), states(*fit)),
        "packed, order beyond": (packed(sorted_indices=torch.tensor([0, 1, 7])), states(*fit)),
        "packed, not in order": (packed(unsorted_indices=None), states(*fit)),
        "packed, other sizes": (packed(batch_sizes=torch.tensor([9, 9])),),
        "packed, growing": (packed(batch_sizes=torch.tensor([2, 3, 3])),),
    }


class Failure(NamedTuple):
    kind: type[Exception]
    text: str


def outcome(call: Callable[..., Any], *given: Any) -> Any:
    """The results, or the error."""
    torch.manual_seed(2)
    try:
        return call(*given)
    except Exception as error:
        return Failure(type(error), str(error))


def assert_alike(mine: Any, wanted: Any, tolerance: float = 2e-5) -> None:
    if isinstance(wanted, Failure):
        assert mine == wanted
        return
    assert not isinstance(mine, Failure), mine
    facts, expected = (
        [(each.dtype, each.requires_grad, each.is_inference()) for each in tensors(results)]
        for results in (mine, wanted)
    )
    assert facts == expected
    assert_close(mine, wanted, tolerance)


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM])
@pytest.mark.parametrize("case", arguments(None))
def test_arguments_are_taken_or_refused_as_pytorch_does(kind: Any, case: str) -> None:
    theirs, ours = make_pair(kind)
    given = arguments(theirs)[case]
    for record, low in itertools.product((False, True), repeat=2):
        with torch.set_grad_enabled(record), torch.autocast("cpu", enabled=low):
            found = [outcome(module, *given) for module in (ours, theirs)]
            assert_alike(*found, 2**-4 if low else 2e-5)
    with torch.inference_mode():
        assert_alike(*[outcome(module, *given) for module in (ours, theirs)])
    assert case != "a subclass" or "Watched" in explain(ours)


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM])
@pytest.mark.parametrize(
    "case",
    ["another batch size", "another width", "another rank", "states in float64", "a batch of one"],
)
def test_compiled_modules_check_states(kind: Any, case: str) -> None:
    theirs, ours = make_pair(kind)
    given = arguments(theirs)[case]
    torch._dynamo.reset()
    compiled = torch.compile(ours, backend="eager")
    with torch.no_grad():
        fit = arguments(theirs)["states"]
        assert_close(compiled(*fit), theirs(*fit))
        assert_alike(*[outcome(module, *given) for module in (compiled, theirs)])


def test_compiled_modules_follow_autocast_lists_and_subclasses() -> None:
    theirs = nn.LSTM(INPUT, UNITS)
    x, sequences = make_batch(), make_sequences()
    torch._dynamo.reset()
    ours = optimize(theirs)
    compiled = torch.compile(ours, backend="eager")
    with torch.no_grad():
        assert_close(compiled(x), theirs(x))
        with torch.autocast("cpu"):
            assert_alike(*[outcome(module, x) for module in (compiled, theirs)], 2**-4)
        y, last = theirs(pack_sequence(sequences, enforce_sorted=False))
        assert_close(compiled(sequences), (unpack_sequence(y), last))
        with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="forward AD"):
            compiled(forward_ad.make_dual(x, x))


def test_the_operator_reads_nothing_that_does_not_fit() -> None:
    module = nn.GRU(INPUT, UNITS)
    weights = [each.detach() for each in module.parameters()]
    x, layer = make_batch(), "GRU 1 1 f32"
    h = torch.zeros(1, N, UNITS)
    run = torch.ops.onernn.recurrent
    assert_close(run(x, None, [h], weights, layer)[:2], module(x, h))
    for given, sizes, states in (
        *((x, None, [wrong]) for wrong in (h[:, :1], h[..., :2], h[0], h.double())),
        (x.double(), None, [h]),
        (x[0], torch.tensor([9, 9]), [h]),
    ):
        with pytest.raises(RuntimeError, match="onernn::recurrent"):
            run(given, sizes, states, weights, layer)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_lists_that_pytorch_runs_are_packed_for_it(dtype: torch.dtype) -> None:
    theirs = nn.LSTM(INPUT, UNITS, 2, bidirectional=True).to(dtype)
    ours = optimize(theirs)
    sequences = [torch.randn(t, INPUT, dtype=dtype) for t in (2, 5, 1)]
    h, c = torch.randn(2, 4, 4, UNITS, dtype=dtype)
    y, last = theirs(pack_sequence(sequences, enforce_sorted=False), (h[:, :3], c[:, :3]))
    mine, ends = ours([*sequences, sequences[0][:0]], (h, c))
    assert mine[3].shape == (0, 2 * UNITS)
    assert_close((mine[:3], [end[:, :3] for end in ends]), (unpack_sequence(y), last))
    assert torch.equal(ends[0][:, 3], h[:, 3])
    with pytest.raises(RuntimeError, match="Expected hidden size"):
        ours(sequences, (h, c))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_lists_of_another_width_are_refused_and_lists_without_steps_keep_states(kind: Any) -> None:
    ours, h = optimize(kind(INPUT, UNITS, bidirectional=True)), torch.randn(2, 2, UNITS)
    for width in (INPUT - 1, INPUT + 1):  # PyTorch's packed LSTM reads beside the rows
        for batch in ([torch.ones(2, width)], [torch.ones(0, width)]):
            for given in (batch, torch.nested.nested_tensor(batch, layout=torch.jagged)):
                with torch.no_grad(), pytest.raises(RuntimeError, match=f"Expected {INPUT}"):
                    ours(given)
    states = (h, 2 * h) if kind is nn.LSTM else h
    y, ends = ours([torch.ones(0, INPUT)] * 2, states)
    assert [each.shape for each in y] == [(0, 2 * UNITS)] * 2
    for mine, given in zip(tensors(ends), tensors(states), strict=True):
        assert torch.equal(mine, given) and mine.data_ptr() != given.data_ptr()


def test_modes_that_watch_functions_see_those_of_pytorch() -> None:
    class Doubles(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            found = function(*args, **kwargs or {})
            return (2 * found[0], found[1]) if function.__name__ == "gru" else found

    (theirs, ours), x = make_pair(nn.GRU), make_batch()
    with torch.no_grad():
        plain = theirs(x)[0]
        with torch.device("cpu"):  # a mode that only makes new tensors
            assert_close(ours(x)[0], plain)
        assert "watches" not in explain(ours)
        with Doubles():
            assert_close(ours(x)[0], 2 * plain)
        assert_close(ours(x)[0], plain)


# Derivatives of derivatives: PyTorch's module in float64 says what they are.


def loss(module: Any, x: Any) -> Any:
    y, ends = module(x)
    words, cubes = sum(each.pow(2).sum() for each in tensors(y)), tensors(ends)
    return words + sum(1.5 * end.pow(3).sum() for end in cubes)


def few(module: Any, x: Any) -> Tensor:
    return torch.cat([*tensors(module(x)[0])]).sum(-1).flatten()[:4]


def gradient_penalty(f, module, x):
    x = x.clone().requires_grad_()
    (g,) = grad(loss(module, f(x)), x, create_graph=True)
    return grad(loss(module, f(x)) + (g.norm() - 1) ** 2, [x, *module.parameters()])


def inner_steps(f, module, x):
    """As MAML takes them: the loss after a step, by the weights before it."""
    weights = dict(module.named_parameters())
    steps = grad(loss(module, f(x)), list(weights.values()), create_graph=True)
    moved = {name: w - 0.1 * g for (name, w), g in zip(weights.items(), steps, strict=True)}
    y = torch.func.functional_call(module, moved, (x,))[0]
    return grad(y.pow(2).sum(), list(weights.values()))


def third(f, module, x):
    x = x.clone().requires_grad_()
    result = loss(module, f(x))
    for _ in range(2):
        (g,) = grad(result, x, create_graph=True)
        result = g.pow(2).sum()
    return grad(result, x)


def mixed_orders(f, module, x):
    x = x.clone().requires_grad_()
    result, by = loss(module, f(x)), [x, *module.parameters()]
    first = grad(result, by, retain_graph=True)
    second = grad(result, by, create_graph=True)
    more = grad(sum(g.pow(2).sum() for g in second), by)
    return [*first, *second, *more]


def batched(f, module, x):
    x = x.clone().requires_grad_()
    y, by = few(module, f(x)), [x, *module.parameters()]
    each = grad(y, by, torch.eye(4).to(y), is_grads_batched=True, create_graph=True)
    return [*each, *grad(sum(g.pow(2).sum() for g in each), by)]


def checkpointed(f, module, x):
    x = x.clone().requires_grad_()
    run = torch.utils.checkpoint.checkpoint
    (g,) = grad(run(lambda x: loss(module, f(x)), x, use_reentrant=False), x, create_graph=True)
    return grad(g.pow(2).sum(), list(module.parameters()))


def jvp_of_gradient(f, module, x):
    """A tangent that appears after the run forward."""
    x = x.clone().requires_grad_()
    y = few(module, f(x))
    with forward_ad.dual_level():
        heads = forward_ad.make_dual(torch.ones_like(y), torch.arange(4).to(y))
        return tuple(forward_ad.unpack_dual(grad(y, x, heads)[0]))


WAYS: dict[str, Callable[[Any, Any, Tensor], Any]] = {
    each.__name__: each
    for each in (
        *(gradient_penalty, inner_steps, third, mixed_orders, batched, checkpointed),
        jvp_of_gradient,
    )
} | {
    "hessian": lambda f, m, x: functional.hessian(lambda x: loss(m, f(x)), x),
    "hessian, vectorized": lambda f, m, x: functional.hessian(
        lambda x: loss(m, f(x)), x, vectorize=True
    ),
    "jacobian, vectorized": lambda f, m, x: functional.jacobian(
        lambda x: few(m, f(x)), x, vectorize=True
    ),
    "hvp": lambda f, m, x: functional.hvp(lambda x: loss(m, f(x)), x, x.sin()),
    "vhp": lambda f, m, x: functional.vhp(lambda x: loss(m, f(x)), x, x.sin()),
    "jvp": lambda f, m, x: functional.jvp(lambda x: few(m, f(x)), x, x.sin()),
}
LAYOUTS: dict[str, Any] = {
    "dense": lambda x: x,
    "packed": lambda x: PackedSequence(
        x.flatten(0, 1)[:8],
        torch.tensor([3, 2, 1, 1, 1]),
        torch.tensor([1, 0, 2]),
        torch.tensor([1, 0, 2]),
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "kind, more",
    [
        (nn.GRU, {}),
        (nn.LSTM, {"num_layers": 2, "bidirectional": True}),
        (nn.LSTM, {"proj_size": 3}),
        (nn.RNN, {"bias": False}),
    ],
)
def test_no_term_of_higher_derivatives_is_lost(
    kind: Any, more: dict[str, Any], way: str, layout: str
) -> None:
    theirs, ours = make_pair(kind, **more)
    x, exact = make_batch(), copy.deepcopy(theirs).double()
    mine, stock, wanted = (
        outcome(WAYS[way], LAYOUTS[layout], module, given)
        for module, given in ((ours, x), (theirs, x), (exact, x.double()))
    )
    if isinstance(stock, Failure):  # no forward derivative of LSTMs
        assert mine == stock and way == "jvp_of_gradient"
    else:
        assert_alike(mine, stock, 1e-3)
        assert_close(mine, wanted, 1e-3)
    assert "onernn: " in explain(ours)


def test_lists_are_differentiated_twice() -> None:
    theirs, ours = make_pair(nn.GRU)
    exact = copy.deepcopy(theirs).double()
    x = make_batch()
    cut = lambda x: [x[:2, 0], x[:, 1], x[:1, 2]]  # noqa: E731
    pack = lambda x: pack_sequence(cut(x), enforce_sorted=False)  # noqa: E731
    wanted = gradient_penalty(pack, exact, x.double())
    assert_close(gradient_penalty(cut, ours, x), wanted, 1e-3)


@pytest.mark.parametrize("options", [{}, {"fullgraph": True}], ids=["may break", "whole"])
def test_compiled_modules_are_differentiated_twice(options: Any) -> None:
    theirs, x = nn.GRU(INPUT, UNITS), make_batch()
    torch._dynamo.reset()
    compiled = torch.compile(optimize(theirs), backend="eager", **options)
    wanted = gradient_penalty(LAYOUTS["dense"], copy.deepcopy(theirs).double(), x.double())
    assert_close(gradient_penalty(LAYOUTS["dense"], compiled, x), wanted, 1e-3)
    if not options:
        torch._dynamo.reset()
        compiled = torch.compile(optimize(theirs), backend="aot_eager")
        assert_close(gradient_penalty(LAYOUTS["dense"], compiled, x), wanted, 1e-3)


WRITES: dict[str, Callable[[Tensor], Any]] = {
    "detach_": Tensor.detach_,
    "zero_": Tensor.zero_,
    "mul_": lambda z: z.mul_(3),
    "transpose_": lambda z: z.transpose_(0, 1),
    "requires_grad_": Tensor.requires_grad_,
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("named", [{}, {"batch_first": True}, {"num_layers": 2, "dropout": 0.2}])
@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM])
def test_results_are_written_to_as_those_of_pytorch(kind: Any, named: Any, write: str) -> None:
    theirs, ours = make_pair(kind, **named)
    x = make_batch()

    def run(module: Any, given: Any, which: int, record: bool) -> Any:
        with torch.set_grad_enabled(record):
            parts = [*tensors(module(given))]
            written = parts[min(which, len(parts) - 1)]
            WRITES[write](written)
            total = sum(part.pow(2).sum() for part in parts)
            if not record:
                return [written, total]
            return [written, *grad(total, list(module.parameters()), allow_unused=True)]

    for case in itertools.product((x, packed()), range(3), (False, True)):
        wanted = outcome(run, theirs, *case)
        if not isinstance(wanted, Failure):  # PyTorch's LSTM saves its results for its gradients
            assert_alike(outcome(run, ours, *case), wanted)


def test_scripting_leaves_the_live_module_optimized() -> None:
    model = optimize(nn.Sequential(nn.GRU(INPUT, UNITS)))
    x = make_batch()
    with torch.no_grad():
        y, _ = model(x)
        before = explain(model)
        scripted = torch.jit.script(model)
        assert explain(model) == before and "onernn: LBR_GRU" in before
        assert [each.original_name for each in scripted.children()] == ["GRU"]
        assert_close(scripted(x)[0], y)
