"""The rules of aten's reductions, norms, sums along an axis, and order.

Formulas: documentation of torch.NAME.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from onernn.adapters.common import bodies
from onernn.adapters.common.bodies import extreme_index
from onernn.adapters.common.files import pairs
from onernn.adapters.common.signatures import OneOf, refuse
from onernn.adapters.torch.table import END, Axes, Axis, Place, Scalar, torch
from onernn.ir.arrays import Array
from onernn.ir.graph import Graph, Node, Value
from onernn.ops.control import scan_attributes
from onernn.ops.reducing import highest, lowest

_REDUCTIONS = pairs(
    "sum=Sum mean=Mean amax=Max max=Max amin=Min min=Min prod=Prod logsumexp=LogSumExp"
)


@torch("sum sum.dim_IntList mean mean.dim amax max amin min prod prod.dim_int logsumexp")
def reduction(self, *, dim=Axes(), keepdim=False, op):
    return _reduce(self, _REDUCTIONS[op.name], dim, keepdim)


def _reduce(self: Any, kind: str, axes: Sequence[int], keepdims: bool) -> Any:
    x = self.promote()
    return getattr(x, f"Reduce{kind}")(axes, keepdims=int(keepdims)) if axes else x


@torch("any any.dim any.dims all all.dim all.dims")
def any_or_all(self, *, dim=Axes(), keepdim=False, op):
    x = self.cast(bool)
    x = (x if op.name == "any" else x.Not()).cast(np.int64)
    found = (x.ReduceSum(dim, keepdims=int(keepdim)) if dim else x).cast(bool)
    return (found if op.name == "any" else found.Not()).promote()


@torch("count_nonzero count_nonzero.dim_IntList")
def count_nonzero(self, *, dim=Axes()):
    return _reduce(self.cast(bool), "Sum", dim, False)


@torch("nansum nanmean")
def nan_reduction(self, *, dim=Axes(), keepdim=False, op):
    """Returns the sum or the mean of the elements that are not NaN."""
    x = self.promote()
    if x.dtype.kind != "f":
        return _reduce(x, "Sum", dim, keepdim)
    total = _reduce(x.IsNaN().Where(x.scalar(0), x), "Sum", dim, keepdim)
    if op.name == "nansum":
        return total
    return total / _reduce(x.IsNaN().Not(), "Sum", dim, keepdim)


@torch("aminmax")
def aminmax(self, *, dim=None, keepdim=False, op):
    axes = range(self.rank) if dim is None else [op.axis(dim)]
    return tuple(_reduce(self, kind, [*axes], keepdim) for kind in ("Min", "Max"))


_NORMS = {1.0: "L1", 2.0: "L2", math.inf: "Max", -math.inf: "Min"}


@torch("linalg_vector_norm")
def vector_norm(self, *, ord=OneOf(2.0, _NORMS), dim=Axes(), keepdim=False):
    return _reduce(self.promote().Abs() if ord[0] == "M" or not dim else self, ord, dim, keepdim)


@torch("norm.ScalarOpt_dim")
def norm(self, *, p=OneOf(2.0, _NORMS), dim=Axes(), keepdim=False):
    return vector_norm(self, ord=p, dim=dim, keepdim=keepdim)


@torch("cosine_similarity")
def cosine_similarity(x1, x2, *, dim=1, eps=1e-8, op):
    rank = max(x1.rank, x2.rank)
    dim = dim - rank if dim >= 0 else dim

    def direction(x: Any) -> Any:
        return x / x.ReduceL2([dim], keepdims=1).Max(x.scalar(eps))

    return (direction(x1.promote()) * direction(x2.promote())).ReduceSum([dim], keepdims=0)


@torch("cdist")
def cdist(x1, x2, *, p=OneOf(2.0, _NORMS), compute_mode=None):
    """Returns the distance of each row of x1 to each row of x2."""
    apart = x1.unsqueeze(-2) - x2.unsqueeze(-3)
    return getattr(apart, f"Reduce{p}")([-1], keepdims=0)


@torch("pairwise_distance")
def pairwise_distance(x1, x2, *, p=OneOf(2.0, _NORMS), eps=1e-6, keepdim=False):
    apart = (x1 - x2).promote() + eps
    return getattr(apart, f"Reduce{p}")([-1], keepdims=int(keepdim))


@torch("_weight_norm")
def weight_norm(v, g, *, dim=0):
    """Returns ``v * g / |v|``, with the norm over all axes except ``dim``; over all axes if dim is
    -1.
    """
    others = [axis for axis in range(v.rank) if axis != dim]
    return v * (g / v.ReduceL2(others, keepdims=1))


@torch("max.dim min.dim")
def extreme(self, *, dim=Axis(), keepdim=False, op):
    """Returns the maximum or minimum along ``dim``, and the index of its first occurrence."""
    kind = op.name.capitalize()
    values = getattr(self, f"Reduce{kind}")([dim], keepdims=int(keepdim))
    return values, extreme_index(self, f"Arg{kind}", dim, keepdim)


@torch("argmax argmin")
def index_of_extreme(self, *, dim=None, keepdim=False, op):
    if dim is None and keepdim:
        refuse("argument keepdim=True: expected False, or an axis in dim")
    kind = "ArgMax" if op.name == "argmax" else "ArgMin"
    return extreme_index(self, kind, None if dim is None else op.axis(dim), keepdim)


@torch(
    """
    var.correction std.correction var_mean.correction std_mean.correction
    var.dim std.dim var_mean.dim std_mean.dim var std var_mean std_mean
    """
)
def variance(self, *, dim=Axes(), keepdim=False, correction=Scalar(1, (0, 1)), unbiased=True, op):
    """Returns the variance or standard deviation, for var_mean and std_mean also the mean.

    The divisor is the number of elements minus ``correction``, at least 0.
    """
    mean = self.ReduceMean(dim, keepdims=1)
    apart = self - mean
    total = (apart * apart).ReduceSum(dim, keepdims=int(keepdim))
    less = correction if unbiased else 0
    count = self.sizes.Gather(dim, axis=0).ReduceProd(keepdims=0).cast(op.result_dtype())
    count = count.Sub(count.scalar(less))
    out = total / (count.Max(count.scalar(0)) if less else count)
    out = out.Sqrt() if op.name.startswith("std") else out
    if not op.name.endswith("mean"):
        return out
    return out, mean if keepdim else mean.squeeze(*dim)


@torch("cumsum")
def cumsum(self, *, dim=Axis()):
    x = self.promote()
    return x.CumSum(dim) if x.rank else x


@torch("logcumsumexp _logcumsumexp")
def logcumsumexp(self, *, dim=Axis()):
    """Returns, for each position, log(sum(exp(x))) over all positions up to it."""
    nodes = (
        Node("Max", ("sum", "x"), ("high",)),
        Node("Min", ("sum", "x"), ("low",)),
        Node("Equal", ("low", "high"), ("equal",)),
        Node("Sub", ("low", "high"), ("apart",)),
        Node("Softplus", ("apart",), ("rest",)),
        Node("Where", ("equal", "log2", "rest"), ("more",)),
        Node("Add", ("high", "more"), ("next",)),
    )
    return _accumulate(self, dim, -np.inf, nodes, {"log2": np.array(math.log(2), self.dtype)})


def _accumulate(
    x: Any, axis: int, first: float, nodes: Sequence[Node], constants: Mapping[str, Array]
) -> Any:
    """Returns, for each position along an axis, ``next``, which the nodes compute from ``x`` at
    this position and ``sum``, the previous result. Before the first position ``sum`` is ``first``.
    """
    if x.rank == 0:
        return x
    dtype, others = x.dtype, [each for each in range(x.rank) if each != axis]
    step = Graph(
        "accumulate",
        (Value("sum", dtype.name), Value("x", dtype.name)),
        (Value("next"), Value("result")),
        (*nodes, Node("Identity", ("next",), ("result",))),
        constants,
    )
    begin = x.sizes.Gather(others, axis=0).ConstantOfShape(value=np.full(1, first, dtype))
    along = {"input_axes": (axis,), "output_axes": (axis,)}
    _, result = begin.Scan(x, outputs=2, **(scan_attributes(step, 1) | along))
    return result


@torch("diff")
def diff(self, prepend=None, append=None, *, n=1, dim=Axis(-1)):
    """Returns the differences of neighbours along an axis, n times."""
    if self.dtype.kind == "b" or n > 8:
        refuse(f"arguments n={n}, self {self.dtype}: expected numbers, and n of at most 8")
    first, *others = (each for each in (prepend, self, append) if each)
    x = first.Concat(*others, axis=dim) if others else first
    for _ in range(n):
        x = x.Slice([1], [END], [dim]) - x.Slice([0], [-1], [dim])
    return x


@torch("cumprod")
def cumprod(self, *, dim=Axis()):
    """Returns the product of all elements up to each position; PyTorch multiplies float32 in
    float64.
    """
    x = self.promote()
    wide = x.cast(np.float64) if x.dtype.kind == "f" else x
    return _accumulate(wide, dim, 1, [Node("Mul", ("sum", "x"), ("next",))], {}).cast(x.dtype)


@torch("cummax cummin")
def cumulative_extreme(self, *, dim=Axis(), op):
    """Returns the extreme of all elements up to each position, and the index of its last
    occurrence; the first NaN is the extreme of all positions after it.
    """
    if self.dtype.kind == "b":
        refuse("expected numbers, got bool; cast them to int64")
    if self.rank == 0:
        return self, self.constant(np.array(0))
    low, kind = (lowest, "Max") if op.name == "cummax" else (highest, "Min")
    values = _accumulate(self, dim, low(self.dtype), [Node(kind, ("sum", "x"), ("next",))], {})
    is_new = self.Equal(values).Or(self.Equal(self).Not())
    count = bodies.count_up(self.size(dim).squeeze(0))
    places = count.unsqueeze(*range(1, self.rank - dim)) if dim < self.rank - 1 else count
    places = is_new.Where(places, places.constant(np.array(0)))
    return values, _accumulate(places, dim, 0, [Node("Max", ("sum", "x"), ("next",))], {})


@torch("sort sort.stable argsort argsort.stable")
def sort(self, *, dim=Axis(-1), descending=False, stable=None, op):
    """Returns the sorted elements and their indices. NaN is the largest number."""
    if self.rank == 0:
        values, indices = self, self.constant(np.array(0))
    else:
        x = self.cast(np.uint8) if self.dtype.kind == "b" else self
        values, indices = x.TopK(self.size(dim), axis=dim, largest=int(descending), outputs=2)
    return (values.cast(self.dtype), indices) if op.name == "sort" else indices


@torch("searchsorted.Tensor searchsorted.Scalar bucketize.Tensor bucketize.Scalar")
def searchsorted(
    sorted_sequence=None,
    self=None,
    boundaries=None,
    sorter=None,
    *,
    right=False,
    side="",
    out_int32=False,
    op,
):
    """Returns the number of elements of a sorted list that are less than each value of ``self``;
    not greater than it if ``right``.
    """
    ends, x = boundaries or sorted_sequence, self
    if sorter:
        refuse("input sorter: expected none; sort the list before")
    x = x.cast(ends.dtype)
    if ends.rank > 1:
        ends = ends.unsqueeze(-2)
    after = x.unsqueeze(x.rank)
    larger = ends.Greater(after) if right or side == "right" else ends.GreaterOrEqual(after)
    return larger.Not().cast(op.result_dtype()).ReduceSum([-1], keepdims=0)


@torch("topk")
def topk(self, *, k=Place(axis=-1), dim=Axis(-1), largest=True, sorted=True, op):
    return self.TopK(op.list_values([k]), axis=dim, largest=int(largest), outputs=2)


@torch("mse_loss l1_loss")
def loss(self, target, *, reduction=OneOf(1, {0: "", 1: "Mean", 2: "Sum"}), op):
    apart = self.promote() - target.promote()
    out = apart * apart if op.name == "mse_loss" else apart.Abs()
    return _reduce(out, reduction, [*range(out.rank)] if reduction else [], False)
