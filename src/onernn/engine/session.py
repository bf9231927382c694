"""Runs a graph as often as asked, from prepared layers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onernn.backend import Stack, open_backend
from onernn.engine.kernels import KERNELS, PreparedNode, prepare, share_of
from onernn.engine.program import UnknownError
from onernn.fuse_passes import Pass, fuse, passes_for
from onernn.fuse_passes.bodies import bodies
from onernn.fuse_passes.over_time import bind
from onernn.ir.arrays import Array
from onernn.ir.budget import STEPS, budget_of_run, return_freed_memory, usable_memory
from onernn.ir.errors import (
    MISFITS,
    OnernnError,
    Refusal,
    UnsupportedError,
    naming,
)
from onernn.ir.feeds import Feed, checked_feed, checked_given
from onernn.ir.files import is_compiled
from onernn.ir.graph import UNSUPPORTED, Graph, Node, Value, graph_of
from onernn.ir.ragged import Ragged, data_of
from onernn.ir.records import dataclass
from onernn.ir.rnn import Recurrent, check_cells

if TYPE_CHECKING:
    from onernn.backend.compiled.library import Kernels
    from onernn.engine.plan import Plan
    from onernn.engine.streams import Streams

_MOST_PLANS = 16
"""Plans of one session: inputs without a declared type may have many types."""

Observer = Callable[[Node, tuple[Any, ...], float], None]


def unsupported(graph: Graph) -> tuple[Refusal, ...]:
    """Returns every node that no kernel runs, with the reason."""
    return tuple(
        Refusal(node.attributes.get("reason", f"operator {node.op} has no kernel"), node.label)
        for node in graph.nodes
        if node.op == UNSUPPORTED or node.op not in KERNELS
    )


@dataclass(frozen=True)
class Explained:
    """How a recurrent node runs, and why."""

    node: str
    cell: str
    direction: str
    dtype: str
    kernel: str
    why: str

    def __str__(self) -> str:
        why = f" ({self.why})" if self.why else ""
        return f"{self.node}: {self.cell} {self.direction}, {self.dtype}, {self.kernel}{why}"


class Session:
    """A model made ready to run: fused, checked, weights packed. Safe to share between threads.

    ``model``: as `onernn.load` gives it, or its path.
    ``dtype``: how recurrent nodes compute: f32, bf16, f16, u8, int8-dynamic (u8 whose scales
    are those of each sentence and step), int8-weights (only weights are rounded, to 8 bits); a
    node that has a precision of its own (`LayerPrecision`) keeps that, except on the "reference",
    which is float32. A node that the backend cannot run falls back to the reference, and
    `explain` says so; with ``strict`` it raises.
    ``passes``: () runs the model unfused; None takes the passes of the dtype. ``max_bytes``: the
    most memory for the values of one run; by default three quarters of what the process may use.
    ``max_steps``: how many operators the loops and layers of one run may run; a layer counts as the
    operators that take as long, and layers over the rows that the inputs bring are free.

    Raises `UnsupportedError` for operators that cannot run, all of them at once, and
    `LibraryError` where the backend's library is missing.

    The path of a compiled file gives a `CompiledModel`, which takes ``threads`` and the limits.
    """

    def __new__(cls, model: Any = None, *args: Any, **options: Any) -> Any:
        if is_compiled(model):
            from onernn.engine.compiled_model import CompiledModel  # no other model's

            return CompiledModel(model, *args, **options)
        return super().__new__(cls)

    def __init__(
        self,
        model: Graph | str | Path,
        dtype: str = "f32",
        threads: int | None = None,
        backend: str = "auto",
        strict: bool = False,
        *,
        passes: tuple[Pass, ...] | None = None,
        max_bytes: int | None = None,
        max_steps: int = STEPS,
    ) -> None:
        self._max_steps = max_steps
        self._asked_bytes = max_bytes
        model = graph_of(model)
        self._passes = passes_for(dtype) if passes is None else passes
        self.graph = fuse(model, self._passes).model
        refusals = unsupported(self.graph)
        if refusals:
            raise UnsupportedError(f"{model.name} cannot be run:", refusals)
        self._engine = open_backend(backend, threads=threads)
        self._options: dict[str, Any] = {"dtype": dtype, "strict": strict}
        self._is_reference = backend == "reference"
        self._rows_apart = False
        self.layers: dict[Node, PreparedNode] = {}
        self.layers = self._prepare(self.graph)
        self._set_up()
        del model
        return_freed_memory()

    def _set_up(self) -> None:
        """Sets what depends on this process, and what runs find out."""
        self._max_bytes = usable_memory() if self._asked_bytes is None else self._asked_bytes
        self._share = share_of(self.graph, self.layers)
        self._kernels: Kernels | None = getattr(self._engine, "kernels", None)
        self._threads = getattr(self._engine, "threads", 1)
        self._undeclared = [v.name for v in self.graph.inputs if v.dtype is None or v.shape is None]
        self._ranged = any(value.ranges for value in self.graph.inputs)  # no plan checks them
        self._plans: dict[tuple[Any, ...], Plan | None] = {}
        self._sized: dict[tuple[Any, ...], Plan | None] = {}
        self._last: tuple[Plan | None, list[int] | None] = None, None  # of any sizes, or of these
        self._has_bodies = any(map(bodies, self.graph.nodes))

    def __getstate__(self) -> dict[str, Any]:
        names = ("graph", "_asked_bytes", "_max_steps", "_passes", "_engine", "_options", "layers")
        return {name: getattr(self, name) for name in (*names, "_is_reference", "_rows_apart")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._set_up()

    def _prepare(self, graph: Graph) -> dict[Node, PreparedNode]:
        """Returns the layer with packed weights of each recurrent node, those in bodies
        included.
        """
        result: dict[Node, PreparedNode] = {}
        for node in graph.nodes:
            for value in node.attributes.values():
                if isinstance(value, Graph):
                    result |= self._prepare(value)
            if node.op != "Rnn":
                continue
            rnn = Recurrent.of(node)
            with naming(node, graph.name):
                layer = self._layer(rnn)
                cells_from = None
                if graph.is_read(rnn.cells):
                    check_cells(rnn.spec)
                    (cells_from,) = rnn.layers
            result[node] = PreparedNode(node, layer, cells_from)
        return result

    def _layer(self, rnn: Recurrent) -> Stack:
        """Returns the layer of a node; nodes with the same weights and spec share one."""
        for node, entry in self.layers.items():
            at = node.attributes
            same = at["weights"] is rnn.weights and node.attrs.precision is rnn.precision
            if same and at["spec"] == rnn.spec and not self._mixes(entry.layer):
                return entry.layer
        options = dict(self._options)
        if rnn.precision and not self._is_reference:
            options["dtype"] = rnn.precision.dtype
            if rnn.precision.parts:
                options["scales"] = rnn.precision.parts
        layer = self._engine.prepare(rnn.spec, rnn.weights, **options)
        if self._mixes(layer):
            return self._on_kernels(rnn, options)
        choice = layer.backend in ("auto", "onednn") and getattr(self._engine, "kernels", None)
        if choice and rnn.precision and not rnn.precision.parts:
            # One kernel for all batches gives a sequence the same bits. Fixed scales choose one.
            kernels = self._on_kernels(rnn, {**options, "strict": False})
            layer = kernels if kernels.backend == "kernels" else layer
        return layer

    def _mixes(self, layer: Stack) -> bool:
        return self._rows_apart and layer.mixes_rows

    def _on_kernels(self, rnn: Recurrent, options: Mapping[str, Any]) -> Stack:
        """Returns the layer on the kernels, with scales for each row. Raises `UnsupportedError`."""
        if getattr(self._engine, "kernels", None) is None:
            raise UnsupportedError(
                "oneDNN takes the scale of u8 from a whole batch, so a stream would change others;"
                " use backend='auto' or 'kernels', or dtype='bf16'"
            )
        backend: Any = open_backend("kernels", threads=getattr(self._engine, "threads", 1))
        layer: Stack = backend.prepare(rnn.spec, rnn.weights, **options)
        return layer

    def run(self, inputs: Feed, observe: Observer | None = None) -> dict[str, Ragged | Array]:
        """Returns the outputs by name, for inputs by name.

        Floats of another dtype, such as float64, are rounded to the dtype that the model declares.
        ``observe(node, outputs, seconds)`` is called after each node. Raises `ShapeError` if an
        input is missing, unknown, not of the model's kind of numbers and shape, or has a number
        that the dtype cannot hold; `BudgetError` before the run would take more than ``max_bytes``
        or ``max_steps``.
        """
        plan, dims = self._last
        call = None if observe or plan is None or self._ranged else plan.arguments(inputs)
        if call is None or (dims is not None and call.dims != dims):
            inputs = checked_feed(self.graph.inputs, inputs)
            plan = None if observe else self._choose(inputs)
            call = plan.arguments(inputs) if plan else None
        outputs = plan and call and plan.run(call, self._max_bytes, self._max_steps, self._budget)
        return outputs or self._walked(checked_feed(self.graph.inputs, inputs), observe)

    def _choose(self, inputs: Feed) -> Plan | None:
        """Returns the plan for these inputs, which the next call tries first.

        Where sizes decide branches, only a plan for these sizes runs all nodes. So the first call
        gets that one, and the plan for all sizes waits for a call with other sizes.
        """
        is_first = self._has_bodies and not self._plans and not self._sized
        plan, sized = self._for_sizes(None, inputs) if is_first else None, True
        if plan is None or plan.outside:
            plan = self._plan(inputs)
            sized = plan is None or plan.is_partial
            plan = self._for_sizes(plan, inputs) if sized else plan
        call = plan.arguments(inputs) if plan else None
        self._last = (plan, call.dims if sized else None) if call else (None, None)
        return plan

    def _for_sizes(self, plan: Plan | None, inputs: Feed) -> Plan | None:
        """Returns a plan for dense inputs of exactly these sizes; ``plan`` where that gains
        nothing.

        ``plan``: for any sizes, which leaves nodes to Python. ``inputs``: checked ones.
        """
        dense = {v.name: data_of(inputs[v.name]) for v in self.graph.inputs if not v.lod_depth}
        key = tuple([(array.dtype, array.shape) for array in dense.values()])
        if key not in self._sized:
            if self._kernels is None or not dense or len(self._sized) >= _MOST_PLANS:
                return plan
            fixed = tuple(
                replace(v, shape=dense[v.name].shape) if v.name in dense else v
                for v in self.graph.inputs
            )
            graph = fuse(replace(self.graph, inputs=fixed), self._passes).model
            layers = {**self.layers, **self._prepare(graph)}
            self._sized[key] = self._new_plan(graph, inputs, layers)
        sized = self._sized[key]
        return sized if sized and (plan is None or sized.fits(plan)) else plan

    @contextmanager
    def _budget(self, inputs: Feed) -> Iterator[None]:
        """A layer may run over as many rows as the inputs have bytes, besides ``max_steps``."""
        nbytes = sum(data_of(value).nbytes for value in inputs.values())
        steps = self._max_steps + nbytes * self._share
        with budget_of_run(self._max_bytes, steps), prepare(self.layers):
            yield

    def _walked(self, inputs: Feed, observe: Observer | None) -> dict[str, Ragged | Array]:
        """Runs node by node in Python, with the errors and the results of each node."""
        values: dict[str, Any] = dict(self.graph.constants)
        values.update(inputs)
        with self._budget(inputs):
            for node in self.graph.nodes:
                arguments = [values[name] if name else None for name in node.inputs]
                started = time.perf_counter()
                with naming(node, self.graph.name):
                    result = KERNELS[node.op](node, *arguments)
                results = result if isinstance(result, tuple) else (result,)
                if observe is not None:
                    observe(node, results, time.perf_counter() - started)
                values.update(zip(node.outputs, results, strict=False))
        return {output.name: values[output.name] for output in self.graph.outputs}

    def _plan(self, inputs: Feed) -> Plan | None:
        """Returns the plan for inputs of these types; None where the graph runs node by node."""
        key = tuple([_kind(inputs[name]) for name in self._undeclared])
        if key not in self._plans:
            if len(self._plans) >= _MOST_PLANS:
                return None
            self._plans[key] = self._new_plan(self.graph, inputs, self.layers)
        return self._plans[key]

    def _new_plan(
        self, graph: Graph, feed: Feed, layers: Mapping[Node, PreparedNode]
    ) -> Plan | None:
        if self._kernels is None:
            return None
        inputs = tuple(value.opened(data_of(feed[value.name])) for value in graph.inputs)
        try:
            plan = self._plan_of(inputs, graph, layers)
        except (OnernnError, UnknownError, *MISFITS):
            return None  # the walk reports what is wrong, if anything is
        except Exception:
            if os.environ.get("ONERNN_RAISE"):
                raise
            return None  # a plan is faster, the walk is right
        return plan if plan.is_worth_it or plan.is_partial else None

    def _plan_of(
        self,
        inputs: tuple[Value, ...],
        graph: Graph | None = None,
        layers: Mapping[Node, PreparedNode] | None = None,
    ) -> Plan:
        """Returns the plan for inputs of these types, on the kernels. Raises `UnsupportedError`."""
        from onernn.engine.plan import Plan  # with C's bindings, which importing this room spares

        kernels, layers = self._kernels, self.layers if layers is None else layers
        if kernels is None:
            raise UnsupportedError("plans run on the kernels only")
        return Plan(graph or self.graph, inputs, kernels, layers, self._threads)

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The inputs of `run`."""
        return self.graph.inputs

    @property
    def explained(self) -> tuple[Explained, ...]:
        """One entry for each recurrent node, those inside loops and branches, too."""
        return tuple(
            Explained(
                each.node.label,
                each.layer.spec.cell.name,
                each.layer.spec.direction,
                each.layer.dtype,
                each.layer.kernel,
                "; ".join(filter(None, (each.layer.why, each.cells_by))),
            )
            for each in self.layers.values()
        )

    def streams(
        self,
        capacity: int,
        states: Mapping[str, str] | None = None,
        *,
        first: Mapping[str, Array] | None = None,
        given: Mapping[str, Array] | None = None,
        inputs: Mapping[str, Any] | None = None,
        queue: int = 64,
    ) -> Streams:
        """Room for ``capacity`` clients, each of which pushes a frame and pulls its result.

        ``states``: the output that is the next state, by the input that takes it. Without it the
        model is one of sequences, which goes on where the chunk before ended (`exposed`).
        ``first``: states before the first frame, zeros where none is given. ``queue``: how many
        frames of a stream may wait, and how many results may be left unpulled.

        Where branches depend on an integer without axes, such as a sample rate, or on sizes, frames
        of the same integers and sizes run together, and no more needs to be said. ``given``: arrays
        for inputs that no frame shall bring; ``inputs``: an array, a dtype or a shape for inputs
        that the model leaves open: an operator that mixes streams is refused here then, and not
        when the first frame runs.

        Raises `UnsupportedError` naming an operator that cannot go on, or that mixes streams.
        """
        from onernn.engine.chunks import Stateful, expose
        from onernn.engine.streams import Streams  # both know sessions

        if capacity < 1 or queue < 1:
            raise UnsupportedError(f"capacity {capacity}, queue {queue}: expected 1 or more")
        session = self
        if given or inputs:
            alike = checked_given(self.graph, given or {})
            session = self.with_graph(bind(self.graph, alike, inputs or {}))
        graph = session.graph
        model = expose(graph) if states is None else Stateful.named(graph, states)
        return Streams(session, model, capacity, first or {}, queue=queue)

    def with_graph(self, graph: Graph, *, rows_apart: bool = False) -> Session:
        """Returns a session of this one's options that runs another graph; they share packed
        weights.

        ``rows_apart``: layers whose numbers would depend on what else is in a batch run on the
        kernels, where they do not. Raises `UnsupportedError` where these are missing.
        """
        session = object.__new__(Session)
        session.__dict__ |= self.__getstate__()
        session._rows_apart = rows_apart
        session.graph = fuse(graph, self._passes).model
        session.layers = session._prepare(session.graph)
        session._set_up()
        return session

    def explain(self) -> str:
        """Returns one line per recurrent node: cell, direction, dtype, kernel, why no faster one;
        then the rule of ``backend="auto"``; how many threads the kernels use; what runs the graph,
        known after the first run; notes.
        """
        lines = list(map(str, self.explained)) or ["no recurrent nodes"]
        if self.layers and (rule := getattr(self._engine, "rule", "")):
            lines.append(f"backend auto: {rule}")
        threads: dict[str, list[str]] = {}
        for each in self.layers.values():
            if each.layer.compiled:
                threads.setdefault(each.layer.compiled.threads, []).append(each.node.label)
        for how, labels in threads.items():
            lines.append(f"threads: {how}" + f"; {', '.join(labels)}" * (len(threads) > 1))
        plans = [
            plan.description if plan else "node by node in Python" for plan in self._plans.values()
        ]
        sized = [plan.description for plan in self._sized.values() if plan]
        plans += [f"for inputs of sizes that it had: {each}" for each in sized]
        lines += [f"graph: {each}" for each in dict.fromkeys(plans)]
        return "\n".join([*lines, *(f"note: {note}" for note in self.graph.notes)])


def _kind(value: Ragged | Array) -> tuple[str, int]:
    array = data_of(value)
    return array.dtype.str, array.ndim
