"""Finds the parts of a Paddle program that onernn can run, and runs them in Paddle."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from onernn.adapters.common.live import LiveOptions, Repacked
from onernn.adapters.common.native import NativeGraph, NativeNode, Part, weave
from onernn.adapters.paddle import messages
from onernn.adapters.paddle.lower import RULES, lower
from onernn.adapters.paddle.read import (
    Operator,
    Program,
    Variable,
    feed_operators,
    fetch_operators,
    parse_program,
)
from onernn.engine.session import Session
from onernn.fuse_passes import fuse
from onernn.ir.arrays import Array
from onernn.ir.errors import Refusal, UnsupportedError
from onernn.ir.graph import UNSUPPORTED, Graph
from onernn.ir.ragged import Ragged, data_of, depth_of
from onernn.ir.records import dataclass

# The graph of reads and writes between the operators of a Paddle program.

_BLOCKS = (8, 10)  # AttrType of attributes that hold blocks


def _native_graph(desc: Any, wanted: Iterable[str]) -> NativeGraph:
    """Returns the reads and writes of a ProgramDesc's main block. An operator with a block uses all
    variables of all inner blocks.
    """
    inner = [op for block in desc.blocks[1:] for op in block.ops]

    def node(op: Any) -> NativeNode:
        holds = [op, *inner] if any(each.type in _BLOCKS for each in op.attrs) else [op]
        reads = frozenset(name for each in holds for name in _names_of(each.inputs))
        writes = frozenset(name for each in holds for name in _names_of(each.outputs))
        return NativeNode(op.type, reads, writes)

    return NativeGraph(map(node, desc.blocks[0].ops), outputs=wanted)


def find_obstacle(
    graph: NativeGraph,
    positions: set[int],
    inputs: Collection[str],
    outputs: Collection[str],
) -> str:
    """Returns the reason why the operators at ``positions`` cannot be moved to the last of these
    positions. Returns "" if they can.
    """
    for name in (*inputs, *outputs):
        if graph.writers[name] > 1:
            return f"variable {name!r} is assigned more than once"
    read: set[str] = set()
    for at in range(min(positions), max(positions)):
        if at in positions:
            read |= graph.reads[at]
        elif early := graph.reads[at].intersection(outputs):
            return f"variable {min(early)!r} is read before all of its operators have run"
        elif late := graph.writes[at].intersection(read, inputs):
            return f"variable {min(late)!r} is assigned before all of its operators have run"
    return ""


def _names_of(slots: Any) -> set[str]:
    return {name for slot in slots for name in slot.arguments if name}


# Finds groups of operators that one operator of onernn can replace, and rewrites the program.
#
# This code works on serialized programs, without Paddle.

RECURRENT = frozenset(
    "gru lstm rnn fusion_gru fusion_lstm multi_gru fused_embedding_fc_lstm attention_lstm".split()
)
"""Recurrent operators. If Paddle keeps running one of them, onernn reports the reason."""

_OUTSIDE = ("feed", "fetch")
PART = "onernn_part"


@dataclass(frozen=True, eq=False)
class ReplaceablePart:
    """Operators that one operator of onernn replaces, and its input and output variables.

    ``sources``: operators that compute constants from parameters. onernn's operator runs them too,
    but they stay in the program if other operators read their results. ``data``: the inputs other
    than ``parameters``. ``depths``: the number of LoD levels that the program declares for each of
    ``data``.
    """

    operators: tuple[Operator, ...]
    sources: tuple[Operator, ...]
    data: tuple[str, ...]
    parameters: tuple[str, ...]
    outputs: tuple[str, ...]
    depths: tuple[int, ...]
    program: Program

    @property
    def label(self) -> str:
        """The name of the part in messages."""
        types = "+".join(dict.fromkeys(op.type for op in self.operators))
        return f"{', '.join(self.outputs) or 'nothing'} ({types})"

    def graph(self, depths: Sequence[int], parameters: Mapping[str, Array]) -> Graph:
        """Returns the graph of these operators for ``data`` with ``depths`` LoD levels."""
        variables = dict(self.program.variables)
        for name, depth in zip(self.data, depths, strict=True):
            variables[name] = replace(variables[name], lod_depth=depth)
        alone = replace(self.program, variables=variables, parameters=parameters)
        graph = _lower(alone, self.data, (*self.sources, *self.operators), self.outputs)
        # At run time, inner variables may have other sizes than declared. Kernels check the actual
        # sizes.
        return replace(graph, inputs=tuple(replace(v, shape=None) for v in graph.inputs))


class LiveProgram:
    """A serialized program, its parameters and the parts of it that onernn can run.

    ``parameters``: returns the arrays of the given variables by name. ``wanted``: variables that
    the rewritten program must still compute, in addition to the variables that fetch operators
    read. If there are none of these variables, it must compute each result that no operator reads.
    Raises `ModelFormatError` for bytes that are not a program, and `UnsupportedError` if an
    operator reads a parameter that has no array.
    """

    def __init__(
        self,
        data: bytes,
        parameters: Callable[[Sequence[Variable]], Mapping[str, Array]],
        wanted: Collection[str] = (),
        file: Path = Path("program"),
    ) -> None:
        program = _without_blocks(parse_program(data, file, parameters))
        self._desc = messages.parse("ProgramDesc", data, file)
        persistent = {n for n, v in program.variables.items() if v.persistable}
        self._graph = graph = _native_graph(self._desc, {*wanted, *persistent})
        # A variable that the program itself assigns is not a constant.
        constants = {k: v for k, v in program.parameters.items() if not graph.writers[k]}
        self._program = replace(program, parameters=constants)
        self._inner = tuple(op for op in program.operators if op.type not in _OUTSIDE)
        read = set[str]().union(*(graph.reads[op.position] for op in self._inner))
        if missing := sorted((read & persistent) - {*constants, *graph.writers}):
            raise UnsupportedError(
                f"{file}: the parameters {missing} have no values; run the startup program, or pass"
                " the scope in which the model was loaded as scope"
            )
        if unknown := sorted({*wanted} - {*program.variables}):
            raise UnsupportedError(
                f"{file}: fetch_list: expected variables of the program, got {unknown}"
            )
        fetched = set[str]().union(*(node.reads for node in graph.nodes if node.type == "fetch"))
        self._wanted = fetched | graph.outputs
        self._has_fetches = bool(fetched or wanted)
        self._foreign = {op.position for op in self._inner if op.type not in RULES}

    def arrays(self, names: Iterable[str]) -> list[Array]:
        """Returns the parameters with these names."""
        return [self._program.parameters[name] for name in names]

    def parts(self) -> tuple[list[ReplaceablePart], list[Refusal]]:
        """Returns the parts that onernn can replace, and why it cannot replace others."""
        depths, reasons = self._understand()
        names = [name for name in self._results() if name in depths]
        roots, reads = self._wanted, self._graph.reads
        if not self._has_fetches:
            read = set[str]().union(*reads)
            unread = [writes for writes in self._graph.writes if not writes & read]
            roots = roots | {*names}.intersection(set[str]().union(*unread))
        needed = roots.union(*(reads[at] for at in self._foreign))
        whole = fuse(self._lower_understood([name for name in names if name in needed])).model

        layers = [node for node in whole.nodes if node.op == "Rnn"]
        candidates = [self._graph.closure({op.position for op in node.origin}) for node in layers]
        narrow = [at for at, node in zip(candidates, layers, strict=True) if node.attrs.precision]
        seen = self._foreign.union(*candidates)
        candidates += [
            {op.position}
            for op in self._inner
            if op.type in RECURRENT and op.position not in seen  # no result is in the graph
        ]
        parts: list[ReplaceablePart] = []
        refusals = list(self._refusals(reasons))
        replaced: set[int] = set()
        for positions in candidates:
            part = self._part(positions, roots, depths)
            obstacle = "Paddle runs it in int8 or bf16" if positions in narrow else ""
            if obstacle := obstacle or self._obstacle(part, positions, replaced, reasons):
                refusals.append(Refusal(obstacle, part.label))
            else:
                replaced |= positions
                parts.append(part)
        return parts, refusals

    def rewrite(self, parts: Mapping[ReplaceablePart, Sequence[Any]]) -> bytes:
        """Returns the serialized program in which the given operators replace each part."""
        desc = messages.message("ProgramDesc")()
        desc.CopyFrom(self._desc)
        block, old = desc.blocks[0], self._desc.blocks[0]
        woven = [
            Part([op.position for op in part.operators], calls, (*part.data, *part.parameters))
            for part, calls in parts.items()
        ]
        # `weave` removes operators whose results nothing reads. Such operators would crash Paddle's
        # squared_mat_sub_fuse_pass.
        operators = weave(self._graph, old.ops, woven)
        # Remove variables that no operator computes any more. A fetch would return the results of
        # an earlier run, which the scope may hold.
        before, after = (
            {name for op in each for name in _names_of(op.outputs)} for each in (old.ops, operators)
        )
        variables = [v for v in old.vars if v.name not in before - after]
        del block.ops[:], block.vars[:]
        block.ops.extend(operators)
        block.vars.extend(variables)
        return bytes(desc.SerializeToString())

    def original(self, part: ReplaceablePart) -> bytes:
        """Returns a serialized block that holds the operators of a part and their variables."""
        result, block = messages.message("BlockDesc")(idx=0, parent_idx=-1), self._desc.blocks[0]
        positions = sorted(op.position for op in (*part.sources, *part.operators))
        result.ops.extend(block.ops[at] for at in positions)
        names = {n for at in positions for n in self._graph.reads[at] | self._graph.writes[at]}
        result.vars.extend(each for each in block.vars if each.name in names)
        return bytes(result.SerializeToString())

    def _understand(self) -> tuple[dict[str, int], dict[str, str]]:
        """Returns the LoD levels of each variable that onernn can compute, and the reasons why it
        cannot compute the rest.

        Adds the operators that onernn cannot run to ``self._foreign``. Paddle runs them, and their
        results have the declared types.
        """
        reasons: dict[str, str] = {}
        while True:
            graph = self._lower_understood(self._results())
            lacking = {
                name: str(node.attributes["reason"])
                for node in graph.nodes
                if node.op == UNSUPPORTED
                for name in node.outputs
            }
            lost = [
                op.position
                for op in self._inner
                if op.position not in self._foreign
                and self._graph.writes[op.position] <= {*lacking}
            ]
            # Add only operators whose inputs onernn can compute. The rest may be refused only
            # because an input is missing.
            first = {at for at in lost if not self._graph.reads[at] & {*lacking}}
            for at in first:
                reasons |= {name: lacking[name] for name in self._graph.writes[at]}
            if not first:
                values = {v.name: v.lod_depth for v in (*graph.inputs, *graph.outputs)}
                return {k: v for k, v in values.items() if k not in lacking}, lacking | reasons
            self._foreign |= first

    def _refusals(self, reasons: Mapping[str, str]) -> Iterable[Refusal]:
        variables = self._program.variables
        for op in self._inner:
            if op.type in RECURRENT and op.position in self._foreign:
                node = self._graph.nodes[op.position]
                assigned = node.reads & {*self._graph.writers} & {*variables}
                trained = [name for name in sorted(assigned) if variables[name].persistable]
                causes = [reasons[name] for name in sorted(node.writes) if name in reasons]
                if trained:
                    causes = [
                        f"the program assigns its parameter {trained[0]!r}, as in training; take a"
                        " clone(for_test=True) from before"
                    ]
                yield Refusal(causes[0] if causes else "it is not understood", op.type)
        for block in self._desc.blocks[1:]:
            for op in block.ops:
                if op.type in RECURRENT:
                    reason = "it is in an inner block; onernn replaces it in the main block only"
                    yield Refusal(reason, op.type)

    def _results(self) -> list[str]:
        """Returns the variables that exactly one operator assigns, if onernn runs this operator.
        Leaves out persistable variables.
        """
        variables = self._program.variables
        return [
            name
            for op in self._inner
            if op.position not in self._foreign
            for name in sorted(self._graph.writes[op.position])
            if name in variables
            and self._graph.writers[name] == 1
            and not variables[name].persistable
        ]

    def _lower_understood(self, fetches: Sequence[str]) -> Graph:
        """Returns the graph of the operators that onernn runs. The graph's inputs are the variables
        that these operators read but do not compute.
        """
        operators = [op for op in self._inner if op.position not in self._foreign]
        results: set[str] = set()
        inputs: dict[str, None] = {}
        for op in operators:
            inputs.update(dict.fromkeys(name for name in op.reads if name not in results))
            results.update(op.writes)
        program = self._program
        feeds = [n for n in inputs if n not in program.parameters and n in program.variables]
        return _lower(program, feeds, operators, fetches)

    def _part(
        self, positions: set[int], roots: set[str], depths: Mapping[str, int]
    ) -> ReplaceablePart:
        graph, parameters = self._graph, self._program.parameters
        inside = [op for op in self._inner if op.position in positions]
        fixed = self._sources({name for op in inside for name in op.reads})
        sources = [op for op in fixed if op.position not in positions]
        own = set[str]().union(*(graph.writes[op.position] for op in sources + inside))
        read = dict.fromkeys(name for op in sources + inside for name in op.reads)
        data = tuple(name for name in read if name not in own and name not in parameters)
        results = dict.fromkeys(name for op in inside for name in op.writes)
        seen = roots.union(name for _, name in graph.outside_reads(positions))
        return ReplaceablePart(
            tuple(inside),
            tuple(sources),
            data,
            tuple(name for name in read if name not in own and name in parameters),
            tuple(name for name in results if name in seen),
            tuple(depths.get(name, 0) for name in data),
            replace(self._program, parameters={}),
        )

    def _sources(self, names: set[str]) -> list[Operator]:
        """Returns the operators that compute these variables from parameters only."""
        graph, fixed, candidates = self._graph, {*self._program.parameters}, list[Operator]()
        for op in self._inner:
            writes = graph.writes[op.position]
            single = all(graph.writers[name] == 1 for name in writes)
            if op.position not in self._foreign and single and graph.reads[op.position] <= fixed:
                fixed |= writes
                candidates.append(op)
        result, needed = list[Operator](), set(names)
        for op in reversed(candidates):
            if graph.writes[op.position] & needed:
                needed |= graph.reads[op.position]
                result.insert(0, op)
        return result

    def _obstacle(
        self,
        part: ReplaceablePart,
        positions: set[int],
        replaced: set[int],
        reasons: Mapping[str, str],
    ) -> str:
        """Returns the reason why one operator cannot replace this part, "" if it can."""
        if positions & replaced:
            return "it shares operators with a part that is replaced already"
        if not part.outputs:
            return "no operator reads its results"
        for name in part.outputs:
            if name in reasons:
                return f"variable {name!r} is read, {reasons[name]}"
        return find_obstacle(self._graph, positions, part.data, part.outputs)


def _without_blocks(program: Program) -> Program:
    """Returns the program without its inner blocks. Loops, branches and operators on tensor arrays
    get unknown types, so that Paddle runs them.
    """
    arrays = {name for name, each in program.variables.items() if each.kind == messages.ARRAY}

    def opaque(op: Operator) -> Operator:
        if "sub_block" not in op.attributes and arrays.isdisjoint((*op.reads, *op.writes)):
            return op
        return replace(op, type=f"{op.type} of Paddle", attributes={})

    return replace(program, operators=tuple(map(opaque, program.operators)), inner={})


def _lower(
    program: Program, feeds: Iterable[str], operators: Iterable[Operator], fetches: Iterable[str]
) -> Graph:
    operators = (*feed_operators(feeds), *operators, *fetch_operators(fetches))
    return lower(replace(program, operators=operators))


def call_python(part: ReplaceablePart, forward: int, backward: int) -> list[Any]:
    """Returns a ``py_func`` operator. ``forward``, ``backward``: Paddle's numbers of the Python
    functions that compute the part and its gradients.
    """
    numbers = {"forward_callable_id": ("i", forward), "backward_callable_id": ("i", backward)}
    inputs, outputs = {"X": (*part.data, *part.parameters)}, {"Out": part.outputs}
    return [_operator("py_func", inputs, outputs, **numbers, backward_skip_vars=("strings", ()))]


def call_compiled(
    part: ReplaceablePart, number: int, lods: Sequence[str], *, fixed: bool
) -> list[Any]:
    """Returns the compiled operator for the part with this number, and operators that set the LoD
    of its outputs.

    ``lods``: the result of `LivePart.lods`. ``fixed``: whether parameters never change.
    """
    inputs = {"Inputs@VECTOR": (*part.data, *part.parameters)}
    more = {"number": ("l", number), "data": ("l", len(part.data)), "fixed": ("b", fixed)}
    reset = {"target_lod": ("ints", ()), "append": ("b", False)}  # Paddle 3 requires both
    return [
        _operator(PART, inputs, {"Out@VECTOR": part.outputs}, **more),
        *(
            _operator("lod_reset", {"X": (name,), "Y": (source,)}, {"Out": (name,)}, **reset)
            for name, source in zip(part.outputs, lods, strict=True)
            if source
        ),
    ]


def call_key(operator: Any) -> tuple[str, int]:
    """Returns the type and the number of an operator, which identify the part that it runs."""
    numbers = {each.name: each.l or each.i for each in operator.attrs}
    return operator.type, numbers.get("number", numbers.get("forward_callable_id", -1))


def restore_operators(data: bytes, originals: Mapping[tuple[str, int], bytes]) -> bytes | None:
    """Returns the serialized program with Paddle's operators restored, None if onernn runs no part
    of it.

    ``originals``: results of `LiveProgram.original` by `call_key`. Operators that were added after
    `LiveProgram.rewrite` are kept.
    """
    desc = messages.parse("ProgramDesc", data, Path("program"))
    block = desc.blocks[0]
    operators, outputs = list[Any](), set[str]()
    variables = {each.name: each for each in block.vars}
    for op in block.ops:
        if original := originals.get(call_key(op)):
            inner = messages.parse("BlockDesc", original, Path("program"))
            variables |= {v.name: v for v in inner.vars if v.name not in variables}
            made = {name for each in operators for name in _names_of(each.outputs)}
            operators += [each for each in inner.ops if not _names_of(each.outputs) <= made]
            outputs |= _names_of(op.outputs)
        elif op.type != "lod_reset" or not _names_of(op.outputs) <= outputs:
            operators.append(op)
    if not outputs:
        return None
    del block.ops[:], block.vars[:]
    block.ops.extend(operators)
    block.vars.extend(variables.values())
    return bytes(desc.SerializeToString())


def _operator(
    kind: str, inputs: Mapping[str, Any], outputs: Mapping[str, Any], **attributes: tuple[str, Any]
) -> Any:
    """Returns an OpDesc. ``attributes``: the OpAttr field and the value of each attribute."""
    result = messages.message("OpDesc")(type=kind)
    for slots, filled in ((result.inputs, inputs), (result.outputs, outputs)):
        for slot, names in filled.items():
            slots.add(parameter=slot, arguments=names)
    attributes["op_role"] = "i", 0  # the forward role, which clone(for_test=True) reads
    for name, (member, value) in attributes.items():
        number = messages.ATTRIBUTE_FIELDS.index(member)
        result.attrs.add(name=name, type=number, **{member: value})
    return result


Batch = Ragged | Array


class Options(LiveOptions):
    """Options of recurrent layers. Paddle runs the layers that onernn refuses at run time."""

    @property
    def strict(self) -> bool:
        """Whether Paddle runs the layers for which onernn has no backend faster than NumPy."""
        return self.backend != "reference"


class LivePart:
    """A part of a program that onernn runs with the current parameters of each call.

    ``constant``: whether all calls use the parameters of the first call. A predictor sets it.
    """

    def __init__(self, part: ReplaceablePart, options: Options, *, constant: bool = False) -> None:
        self.part, self.constant, self._options = part, constant, options
        self.threads = options.threads
        self._sessions = Repacked(self._new_session, constant=constant)
        self._only_python = set[Any]()

    def session(self, depths: Sequence[int], parameters: Sequence[Array]) -> Session:
        """Returns the session for inputs with ``depths`` LoD levels.

        Raises `UnsupportedError` if onernn cannot run the part.
        """
        return self._sessions(tuple(depths), parameters)

    def run(self, data: Sequence[Batch], parameters: Sequence[Array]) -> list[Batch]:
        """Returns the outputs in the order of ``part.outputs``."""
        session = self.session([*map(depth_of, data)], parameters)
        outputs = session.run(dict(zip(self.part.data, data, strict=True)))
        return [outputs[value.name] for value in session.graph.outputs]

    def lods(self, session: Session) -> tuple[str, ...] | None:
        """Returns for each output the name of the input whose LoD it has, "" if it has none.
        Returns None if Python must run the part.

        Python must run a part if a layer is not compiled, or if an output has a LoD that no input
        has.
        """
        graph = session.graph
        if not all(each.layer.compiled for each in session.layers.values()):
            return None
        sources = {graph.types[v.name].lod: v.name for v in graph.inputs} | {(): ""}
        result = [sources.get(graph.types[v.name].lod) for v in graph.outputs]
        return None if None in result else tuple(map(str, result))

    def compile(self, data: Sequence[Batch], parameters: Sequence[Array]) -> bytes:
        """Returns the compiled model for data of these dtypes, ranks and LoD levels. It is empty if
        only Python can run the part.
        """
        from onernn.engine.compiling import content_of  # imports the C bindings

        types = tuple([(data_of(x).dtype, data_of(x).ndim, depth_of(x)) for x in data])
        if types in self._only_python:
            return b""
        try:
            return content_of(
                self.session([*map(depth_of, data)], parameters), [*map(data_of, data)]
            )
        except UnsupportedError:
            self._only_python.add(types)
            return b""

    def _new_session(self, depths: tuple[int, ...], parameters: Sequence[Array]) -> Session:
        named = dict(zip(self.part.parameters, parameters, strict=True))
        graph = self.part.graph(depths, named)
        if graph.notes:  # notes state deviations, so Paddle runs the part
            raise UnsupportedError("; ".join(graph.notes))
        options = self._options
        return Session(graph, options.dtype, options.threads, options.backend, options.strict)


class LayerKind(NamedTuple):
    """The cell type and the sizes of a paddle.nn layer or of an operator ``rnn``."""

    mode: str
    input_size: int
    hidden_size: int
    layers: int
    directions: int
