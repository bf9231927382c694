"""Prepares a model once and runs it any number of times."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from onernn.backend import Stack, open_backend
from onernn.backend.onednn.precision import DTYPES, unknown
from onernn.engine.kernels import KERNELS, PreparedNode, make_own, prepare, share_of
from onernn.engine.program import UnknownError
from onernn.fuse_passes import Pass, fuse, passes_for
from onernn.fuse_passes.bodies import bodies, every_node
from onernn.ir.arrays import Array, same_bytes
from onernn.ir.budget import STEPS, budget_of_run, return_freed_memory, usable_memory
from onernn.ir.errors import (
    MISFITS,
    OnernnError,
    Refusal,
    UnsupportedError,
    naming,
)
from onernn.ir.feeds import Feed, check_feed, check_given
from onernn.ir.files import is_compiled
from onernn.ir.graph import (
    UNSUPPORTED,
    Defaults,
    Graph,
    Node,
    Value,
    defaults_of,
    graph_of,
    with_open_names,
)
from onernn.ir.ragged import Ragged, data_of
from onernn.ir.records import dataclass
from onernn.ir.rnn import Recurrent, check_cells
from onernn.ir.types import as_tuple

if TYPE_CHECKING:
    from onernn.backend.compiled.library import Kernels
    from onernn.engine.plan import Arguments, Plan
    from onernn.engine.streams import Streams

_MOST_PLANS = 16
"""Limit for the plans that a session keeps: calls with different types of undeclared inputs need
different plans.
"""

Observer = Callable[[Node, tuple[Any, ...], float], None]


def find_unsupported(graph: Graph) -> tuple[Refusal, ...]:
    """Returns every node that no kernel runs, with the reason."""
    return tuple(
        Refusal(node.attributes.get("reason", f"onernn does not run {node.op}"), node.label)
        for node in graph.nodes
        if node.op == UNSUPPORTED or node.op not in KERNELS
    )


def _refuse_unsupported(graph: Graph) -> None:
    if refusals := find_unsupported(graph):
        raise UnsupportedError(f"{graph.name} cannot be run:", refusals)


@dataclass(frozen=True)
class Explained:
    """The kernel and the dtype that a recurrent node runs with, and the reason for this choice."""

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
    """A model made ready to run: the graph is fused and checked, and the weights are packed. Safe
    to share between threads.

    ``model``: a graph that `onernn.load` returned, or a model's path. ``threads``: by default all
    CPUs that the process may use. ``backend``: "auto" runs each layer on the kernels if they
    support it, otherwise on oneDNN; "kernels", "onednn", "reference" (NumPy). ``dtype``: how
    recurrent nodes compute: f32, bf16, f16, u8, int8-dynamic (u8 with one scale per sequence and
    step), int8-weights (only weights are rounded, to 8 bits). A node with its own precision
    (`LayerPrecision`) keeps it, except on the "reference", which is float32. A node that the
    backend cannot run falls back to the reference, and `explain` says so; if ``strict`` is true,
    the session raises an error instead. ``passes``: () runs the model unfused; None selects the
    fuse passes of the dtype. ``max_bytes``: the maximum memory for the values of one run; by
    default three quarters of the memory that the process may use. ``max_steps``: the maximum number
    of operators that the loops and layers of one run may execute. A layer counts as the number of
    small operators that take as long as the layer. Running each layer once over the rows of the
    inputs is not counted. ``rules``: definitions of operators that onernn does not know (see
    `onernn.load`); only with a path.

    Raises `UnsupportedError` for operators that cannot run, all of them at once, `LibraryError` if
    the backend's library is missing, and the errors of `onernn.load` for a path.

    With the path of a compiled file, `Session` returns a `CompiledModel`, which takes ``threads``,
    ``max_bytes`` and ``max_steps``.

    >>> layer, iter = np.ones((1, 1, 2, 3, 3), "f4"), np.ones((1, 1, 3, 3, 3), "f4")
    >>> spec, weights = onernn.RnnSpec(onernn.Cell.GRU, 2, 3), onernn.RnnWeights(layer, iter)
    >>> gru = onernn.Node("Rnn", ("x",), ("y",), {"spec": spec, "weights": weights})
    >>> x, y = onernn.Value("x", "float32", (None, 2), lod_depth=1), onernn.Value("y")
    >>> model = onernn.Graph("gru", (x,), (y,), (gru,), {})
    >>> session = onernn.Session(model)
    >>> session.run({"x": onernn.Ragged.from_lengths(np.ones((4, 2), "f4"), [3, 1])})["y"]
    Ragged(float32 (4, 3), 2 sequences)
    """

    _defaults: Defaults | None = None

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
        rules: Mapping[str, Any] | None = None,
    ) -> None:
        if dtype not in DTYPES and (backend, dtype) != ("reference", "f64"):
            raise UnsupportedError(unknown(dtype))
        self._max_steps = max_steps
        self._asked_bytes = max_bytes
        model = graph_of(model, rules)
        self._defaults = defaults_of(model)
        self._passes = passes_for(dtype) if passes is None else passes
        self.graph = fuse(model, self._passes).model
        _refuse_unsupported(self.graph)
        self._engine = open_backend(backend, threads=threads)
        self._options: dict[str, Any] = {"dtype": dtype, "strict": strict}
        self._is_reference = backend == "reference"
        self._rows_apart = False
        self.layers: dict[Node, PreparedNode] = {}
        self.layers = self._prepare(self.graph)
        self._set_up()
        del model
        return_freed_memory()

    # otherwise a type checker would take the result for Any, and accept any options
    if not TYPE_CHECKING:

        @wraps(__init__, assigned=())  # so that help() shows the options
        def __new__(cls, model=None, *args, **options):
            if is_compiled(model):
                from onernn.engine.compiled_model import CompiledModel  # only this model needs it

                return CompiledModel(model, *args, **options)
            return super().__new__(cls)

    def _set_up(self) -> None:
        """Sets the attributes that a pickled session lacks, because they depend on the process or
        are filled by runs.
        """
        self._max_bytes = usable_memory() if self._asked_bytes is None else self._asked_bytes
        self._share = share_of(self.graph, self.layers)
        self._kernels: Kernels | None = getattr(self._engine, "kernels", None)
        self._threads = getattr(self._engine, "threads", 1)
        self._undeclared = [v.name for v in self.graph.inputs if v.dtype is None or v.shape is None]
        # plans do not check whether dynamic sizes are in the declared ranges
        self._ranged = any(value.ranges for value in self.graph.inputs)
        self._plans: dict[tuple[Any, ...], Plan | None] = {}
        self._sized: dict[tuple[Any, ...], Plan | None] = {}
        # the last plan, and its sizes if they are fixed
        self._last: tuple[Plan | None, list[int] | None] = None, None
        self._why_walked = ""
        self._has_bodies = any(map(bodies, self.graph.nodes))
        self._fed: dict[frozenset[str], Session] = {}
        self._bound: tuple[dict[str, Array], Session] | None = None

    def __getstate__(self) -> dict[str, Any]:
        names = ("graph", "_asked_bytes", "_max_steps", "_passes", "_engine", "_options", "layers")
        return {name: getattr(self, name) for name in (*names, "_is_reference", "_rows_apart")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._set_up()

    def _prepare(self, graph: Graph) -> dict[Node, PreparedNode]:
        """Returns the layer with packed weights for each recurrent node, including nodes in bodies
        of loops and branches.
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
            # Uses one kernel for all batch sizes: a sequence has the same results in every batch.
            # Layers with fixed scales use one kernel anyway.
            kernels = self._on_kernels(rnn, {**options, "strict": False})
            layer = kernels if kernels.backend == "kernels" else layer
        return layer

    def _mixes(self, layer: Stack) -> bool:
        return self._rows_apart and layer.mixes_rows

    def _on_kernels(self, rnn: Recurrent, options: Mapping[str, Any]) -> Stack:
        """Returns the layer on the kernels. In contrast to oneDNN, the kernels quantize each row
        with its own scale. Raises `UnsupportedError` if the kernels are missing.
        """
        if getattr(self._engine, "kernels", None) is None:
            raise UnsupportedError(
                "dtype='u8': oneDNN scales a whole batch, so that a stream would change others;"
                " use backend='auto' or 'kernels', or dtype='bf16'"
            )
        backend: Any = open_backend("kernels", threads=getattr(self._engine, "threads", 1))
        layer: Stack = backend.prepare(rnn.spec, rnn.weights, **options)
        return layer

    def run(self, inputs: Feed, observe: Observer | None = None) -> dict[str, Ragged | Array]:
        """Returns the outputs by name, for inputs by name.

        Floats of another dtype, such as float64, are rounded to the dtype that the model declares.
        ``observe(node, outputs, seconds)`` is called after each node. Inputs that have a default in
        the model's file may be passed as well.

        Raises `ShapeError` if an input is missing or unknown, has a dtype or shape that the model
        does not take, or has a value that the dtype cannot hold. Raises `BudgetError` before the
        run would take more than ``max_bytes`` or ``max_steps``.

        >>> x, y = onernn.Value("x", "float32", (None, 2)), onernn.Value("y")
        >>> relu = onernn.Node("Relu", ("x",), ("y",))
        >>> model = onernn.Graph("relu", (x,), (y,), (relu,), {})
        >>> onernn.Session(model).run({"x": np.array([[-1, 2]], "f4")})["y"].tolist()
        [[0.0, 2.0]]
        """
        if self._defaults and isinstance(inputs, Mapping):
            if names := self._defaults.names.intersection(inputs):
                return self._run_fed(self._defaults, names, inputs, observe)
        if observe is None:
            plan, call = self._call(inputs)
            if plan and call and (outputs := self._run_plan(plan, call)):
                return outputs
        return self._walk(check_feed(self.graph.inputs, inputs), observe)

    def _call(self, inputs: Feed) -> tuple[Plan | None, Arguments | None]:
        """Returns the plan for these inputs and the arguments of its call, None without a plan.

        Raises `ShapeError` for inputs that the model does not take.
        """
        plan, dims = self._last
        call = None if plan is None or self._ranged else plan.arguments(inputs)
        if call is None or (dims is not None and call.dims != dims):
            inputs = check_feed(self.graph.inputs, inputs)
            plan = self._choose(inputs)
            call = plan.arguments(inputs) if plan else None
        return plan, call

    def _run_plan(self, plan: Plan, call: Arguments) -> dict[str, Ragged | Array] | None:
        return plan.run(call, self._max_bytes, self._max_steps, self._budget)

    def _run_fed(
        self, defaults: Defaults, names: frozenset[str], inputs: Feed, observe: Observer | None
    ) -> dict[str, Ragged | Array]:
        """Returns the outputs of a run in which arrays replace defaults of the model's file.

        A second session takes these arrays as inputs. But layers need their weights before a run.
        So if a default is a weight, a session is prepared with these arrays as constants; a call
        with different arrays prepares a new session.
        """
        if names not in self._fed:
            if len(self._fed) >= _MOST_PLANS:
                self._fed.clear()
            self._fed[names] = self.with_graph(defaults.open(names, {}))
        session = self._fed[names]
        if not find_unsupported(session.graph):
            return session.run(inputs, observe)
        declared = tuple(value for value in defaults.inputs if value.name in names)
        arrays = {
            name: np.asarray(data_of(value), order="C")
            for name, value in check_feed(declared, {n: inputs[n] for n in names}).items()
        }
        bound = self._bound
        if (
            not bound
            or bound[0].keys() != arrays.keys()
            or not all(same_bytes(old, arrays[name]) for name, old in bound[0].items())
        ):
            arrays = {name: array.copy() for name, array in arrays.items()}
            session = self.with_graph(defaults.open((), arrays))
            _refuse_unsupported(session.graph)
            bound = self._bound = arrays, session
        others = {name: value for name, value in inputs.items() if name not in names}
        return bound[1].run(others, observe)

    def _choose(self, inputs: Feed) -> Plan | None:
        """Returns the plan for these inputs; the next call tries the same plan first.

        If branches depend on sizes, only a plan for fixed sizes runs all nodes. So the first call
        gets a plan for its own sizes. The plan for any sizes is made at a call with different
        sizes.
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
        """Returns a plan for dense inputs of exactly these sizes. Returns ``plan`` unless the new
        plan is better (`Plan.fits`).

        ``plan``: a plan for any sizes, in which Python runs some nodes. ``inputs``: the checked
        inputs.
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
        """Limits the memory and the operators of a run. The limit is ``max_steps``, plus the cost
        of running each layer over as many rows as the inputs have bytes.
        """
        nbytes = sum(data_of(value).nbytes for value in inputs.values())
        steps = self._max_steps + nbytes * self._share
        with budget_of_run(self._max_bytes, steps), prepare(self.layers):
            yield

    def _walk(self, inputs: Feed, observe: Observer | None) -> dict[str, Ragged | Array]:
        """Returns the outputs of the graph, which runs node by node in Python. An error names the
        node that raised it.
        """
        values: dict[str, Any] = dict(self.graph.constants)
        values.update(inputs)
        with self._budget(inputs):
            for node in self.graph.nodes:
                arguments = [values[name] if name else None for name in node.inputs]
                started = time.perf_counter()
                with naming(node, self.graph.name):
                    result = KERNELS[node.op](node, *arguments)
                results = as_tuple(result)
                if observe is not None:
                    observe(node, results, time.perf_counter() - started)
                values.update(zip(node.outputs, results, strict=False))
            outputs = dict[str, Ragged | Array]()
            for output in self.graph.outputs:
                others = (*inputs.values(), *outputs.values())
                outputs[output.name] = make_own(values[output.name], others)
            return outputs

    def _plan(self, inputs: Feed) -> Plan | None:
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
        inputs = tuple(value.complete(data_of(feed[value.name])) for value in graph.inputs)
        try:
            plan = self._plan_of(inputs, graph, layers)
        except (OnernnError, UnknownError, *MISFITS) as error:
            self._why_walked = _why(error)
            return None  # `_walk` raises the errors of this graph, if there are any
        except Exception:
            if os.environ.get("ONERNN_RAISE"):
                raise
            return None  # without a plan, `_walk` returns the same results, but takes longer
        return plan if plan.is_worth_it or plan.is_partial else None

    def _plan_of(
        self,
        inputs: tuple[Value, ...],
        graph: Graph | None = None,
        layers: Mapping[Node, PreparedNode] | None = None,
    ) -> Plan:
        from onernn.engine.plan import Plan  # C's bindings are imported only when a plan is made

        kernels, layers = self._kernels, self.layers if layers is None else layers
        if kernels is None:
            raise UnsupportedError("a plan needs the kernels: use backend='auto' or 'kernels'")
        return Plan(graph or self.graph, inputs, kernels, layers, self._threads)

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The inputs of `run`."""
        return self.graph.inputs

    @property
    def explained(self) -> tuple[Explained, ...]:
        """One entry for each recurrent node, including nodes inside loops and branches."""
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

    @property
    def interpreted(self) -> str:
        """The operators that Python runs instead of the library, for inputs of any sizes, each with
        the number of nodes and the reason; "" if there are none, or if inputs lack a type.
        """
        if self._kernels is None or self._undeclared:
            return ""
        try:
            return self._plan_of(self.graph.inputs).interpreted
        except (OnernnError, UnknownError, *MISFITS) as error:
            return f"all ({_why(error)})"

    @property
    def slower_kernels(self) -> str:
        """Why the kernels in use are not the best for this CPU, and what to do; "" if they are, or
        if no kernels are used. The text does not mention a limit that the user sets in the variable
        ONERNN_MAX_ISA; `onernn doctor` reports it.
        """
        if self._kernels is None or not self._kernels.missing:
            return ""
        return f"{self._kernels.isa} is {self._kernels.shortfall}"

    def streams(
        self,
        capacity: int,
        states: Mapping[str, str] | None = None,
        *,
        first: Mapping[str, Array] | None = None,
        given: Mapping[str, Array] | None = None,
        inputs: Mapping[str, Any] | Sequence[str] | None = None,
        queue: int = 64,
    ) -> Streams:
        """Returns streams for ``capacity`` clients, each of which pushes a frame and pulls its
        result.

        ``states`` maps each input that takes a state to the output that is the next state. If
        ``states`` is None, the model is a model of sequences; each chunk continues from the state
        after the previous chunk (see `expose`). ``first``: states before the first frame, zeros by
        default. ``queue``: the maximum number of waiting frames, and of results that are not pulled
        yet, per stream.

        Branches may depend on sizes, or on an integer without axes, such as a sample rate. Then
        frames of the same integers and sizes run together; no further option is needed. ``given``:
        arrays for inputs that are the same in all frames; frames must not contain them. ``inputs``:
        an array, a dtype or a shape for inputs that the model leaves open, or texts in the form of
        the option ``--input``, ``["x=float32(1, 576)"]`` or ``{"x": "float32(1, 576)"}``. With
        ``given`` or ``inputs``, this method raises errors that `push` would otherwise raise later,
        for instance if a branch mixes streams. Raises `UnsupportedError` naming an operator that
        cannot continue from a state, or that mixes streams.

        >>> x, s, after = (onernn.Value(name, "float32", (1,)) for name in ("x", "s", "after"))
        >>> add = onernn.Node("Add", ("x", "s"), ("after",))
        >>> model = onernn.Graph("sum", (x, s), (after,), (add,), {})
        >>> streams = onernn.Session(model).streams(100, {"s": "after"})
        >>> client = streams.open()
        >>> for number in (1, 2):
        ...     streams.push(client, np.array([number], "f4"))
        >>> [result["after"].item() for result in streams.pull(client)]
        [1.0, 3.0]
        """
        from onernn.engine.chunks import Stateful, expose
        from onernn.engine.streams import Streams  # these two modules import this module
        from onernn.fuse_passes.over_time import bind

        if capacity < 1 or queue < 1:
            raise UnsupportedError(f"capacity={capacity}, queue={queue}: expected 1 or more")
        session = self
        if given or inputs:
            alike = check_given(self.graph, given or {})
            session = self.with_graph(bind(self.graph, alike, _read_texts(inputs or {})))
        graph = session.graph
        model = expose(graph) if states is None else Stateful.of_names(graph, states)
        return Streams(session, model, capacity, first or {}, queue=queue)

    def with_graph(self, graph: Graph, *, rows_apart: bool = False) -> Session:
        """Returns a session with the same options that runs another graph; both sessions share
        packed weights.

        ``rows_apart``: runs a layer on the kernels, which compute each row separately, if its
        results would otherwise depend on the other rows of a batch. Raises `UnsupportedError` if
        the kernels are missing.
        """
        session = object.__new__(Session)
        session.__dict__ |= self.__getstate__()
        session._rows_apart |= rows_apart
        session.graph = fuse(graph, self._passes).model
        session.layers = session._prepare(session.graph)
        session._set_up()
        return session

    def _explain_loops(self) -> Iterator[str]:
        loops = [node for node in every_node(self.graph) if node.op in ("Loop", "Scan")]
        refusals = fuse(self.graph, self._passes).refusals if loops else ()
        for node in loops:
            reasons = [each.reason for each in refusals if each.where in node.outputs]
            yield f"{node.label}: a loop ({'; '.join(reasons) or 'no pass makes it a layer'})"

    def explain(self) -> str:
        """Returns one line per recurrent node: the cell, direction, dtype and kernel, and why no
        faster kernel runs it. One line per loop follows: why the loop is not a layer.

        Further lines: the rule of ``backend="auto"``; why the kernels are not the best for this
        CPU, if they are not; how many threads they use; after the first run, whether the library or
        Python runs the graph; notes.

        >>> x, y = onernn.Value("x", "float32", (None, 2)), onernn.Value("y")
        >>> relu = onernn.Node("Relu", ("x",), ("y",))
        >>> model = onernn.Graph("relu", (x,), (y,), (relu,), {})
        >>> print(onernn.Session(model).explain())
        no recurrent nodes
        """
        lines = list(map(str, self.explained)) or ["no recurrent nodes"]
        lines += self._explain_loops()
        if self.layers and (rule := getattr(self._engine, "rule", "")):
            lines.append(f"backend auto: {rule}")
        lines += [f"kernels: {self.slower_kernels}"] if self.slower_kernels else []
        threads: dict[str, list[str]] = {}
        for each in self.layers.values():
            if each.layer.compiled:
                threads.setdefault(each.layer.compiled.threads, []).append(each.node.label)
        for how, labels in threads.items():
            lines.append(f"threads: {how}" + f"; {', '.join(labels)}" * (len(threads) > 1))
        walked = "node by node in Python" + f": {self._why_walked}" * bool(self._why_walked)
        plans = [plan.description if plan else walked for plan in self._plans.values()]
        sized = [plan.description for plan in self._sized.values() if plan]
        plans += [f"for inputs of sizes that it had: {each}" for each in sized]
        lines += [f"graph: {each}" for each in dict.fromkeys(plans)]
        return "\n".join([*lines, *(f"note: {note}" for note in self.graph.notes)])


def _read_texts(inputs: Mapping[str, Any] | Sequence[str]) -> dict[str, Any]:
    """Returns the declarations of inputs by name. Texts have the form of the option ``--input``."""
    if not isinstance(inputs, Mapping):
        listed = inputs if isinstance(inputs, list | tuple) else [inputs]
        texts, known = [*map(str, listed)], dict[str, Any]()
    else:
        texts = [f"{n}={k}" for n, k in inputs.items() if isinstance(k, str) and "(" in k]
        known = dict(inputs)
    if texts:
        from onernn.engine.emit.pipeline import read_declared  # imports all of emit

        known |= {n: with_open_names(value) for n, value in read_declared(texts).items()}
    return known


def _why(error: Exception) -> str:
    unknown = isinstance(error, UnknownError)
    return f"the shape of {error} is not known" if unknown else str(error)


def _kind(value: Ragged | Array) -> tuple[str, int]:
    array = data_of(value)
    return array.dtype.str, array.ndim


def find_obstacles(session: Session) -> list[Refusal]:
    """Returns the inputs and layers that prevent a plan from running the whole model, with the
    reasons.
    """
    from onernn.engine.inferring import lacking  # imported only by callers that need plans

    pairs = ((value, lacking(value)) for value in session.graph.inputs)
    return [Refusal(lacks, value.name) for value, lacks in pairs if lacks] + [
        Refusal(each.layer.why or "another library runs it", node.label)
        for node, each in session.layers.items()
        if each.layer.compiled is None
    ]


def plan_ahead(session: Session) -> list[Refusal]:
    """Makes the plan of a session before its first run; returns why Python would run a part of the
    model.

    If the graph has branches or loops, the first run makes the plan, because branches may depend on
    sizes.
    """
    refusals = find_obstacles(session)
    if refusals or session._has_bodies:
        return refusals
    try:
        plan = session._plans[()] = session._plan_of(session.graph.inputs)
    except (OnernnError, UnknownError, *MISFITS) as error:
        return [Refusal(str(error), "model")]
    return [Refusal("only Python runs it", node.label) for node in plan.outside]


def run_at_once(session: Session, inputs: Feed) -> dict[str, Ragged | Array] | None:
    """Returns the outputs of a session if one call of the library computes them all.

    Returns None if inputs do not have the dtypes and shapes that the model declares, if Python has
    to run a node, or if the library refuses the run. In these cases `Session.run` raises an error
    or takes longer.
    """
    with suppress(OnernnError):
        plan, call = session._call(inputs)
        if plan and call and call.feed is not inputs:
            # `arguments` takes inputs only if they need no conversion
            call = plan.arguments(inputs)
        if plan and call and not plan.outside:
            return session._run_plan(plan, call)
    return None
