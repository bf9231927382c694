"""The last step of emit: assigns a C++ expression to every value and fills the templates."""

from __future__ import annotations

import re
import textwrap
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import field
from importlib import metadata
from pathlib import Path
from typing import Any

from onernn.backend.compiled.packing import BYTES
from onernn.backend.process import MOST_THREADS
from onernn.engine.emit.rendering import INDICES, CellCode, Store, call, element, formula, render
from onernn.engine.emit.streaming import goes_on, list_kept_states
from onernn.engine.inferring import sizes_of
from onernn.engine.program import (
    Call,
    DelayLine,
    Layer,
    LodLevel,
    Mark,
    Program,
    Step,
    WrittenNode,
    finds,
    name_kept,
    namespace,
    sizes_in,
    stretch_over_loops,
)
from onernn.ir.errors import ShapeError, UnsupportedError
from onernn.ir.graph import Value
from onernn.ir.records import dataclass
from onernn.ir.types import Size, volume, write_shape
from onernn.kernels import header_of, list_included, text_of


@dataclass
class Member:
    """A C++ member of the model that holds memory."""

    ident: str
    ctype: str
    size: Size


@dataclass(frozen=True)
class Local:
    """A pointer that is defined at the beginning of a call."""

    ident: str
    ctype: str
    expression: str
    comment: str


@dataclass
class Plan:
    """The memory that the model needs, and ``places``: the C++ expression of each value."""

    program: Program
    places: dict[str, str] = field(default_factory=dict)
    members: list[Member] = field(default_factory=list)
    locals: list[Local] = field(default_factory=list)
    steps: list[WrittenNode] = field(default_factory=list)
    copies: list[tuple[str, str]] = field(default_factory=list)  # (source, output)
    used: set[str] = field(default_factory=set)
    unread: set[str] = field(default_factory=set)  # outputs that no caller reads
    sized: list[str] = field(default_factory=list)  # names of integers that are computed from sizes

    def place(self, name: str) -> str:
        return "nullptr" if name in self.unread else self.places[name]

    def point(self, name: str, ctype: str, expression: str) -> None:
        """Adds a pointer to a value. The pointer's name ends with ``_at``, unlike all identifiers
        of templates.
        """
        ident = f"{self.program.ident(name)}_at"
        comment = write_shape(self.program.shape(name))
        self.locals.append(Local(ident, ctype, expression, comment))
        self.places[name] = ident


def plan(program: Program, store: Store) -> Plan:
    """Returns the C++ expressions of all values that are read, and the memory for them."""
    result = Plan(program)
    views, steps = program.views, [each for each in program.codes if each.codes]
    result.steps = steps

    def root(name: str) -> str:
        return views[name][0] if name in views else name

    makers: dict[str, tuple[str, WrittenNode]] = {}
    spans: dict[str, tuple[int, int]] = {}
    begins, loops = list[int](), list[tuple[int, int]]()
    for at, code in enumerate(steps):
        outputs_of = [name for name in code.node.outputs if name]
        for output in outputs_of:
            makers.setdefault(root(output), (output, code))
        for name in map(root, (*outputs_of, *code.reads)):
            spans[name] = spans.get(name, (at,))[0], at
        if code.mark == "while":
            begins.append(at)
        if code.mark == "again":
            loops.append((begins.pop(), at))
    stretch_over_loops(spans, loops)
    read = [root(name) for each in steps for name in each.reads]
    result.used = {*read, *(root(value.name) for value in program.graph.outputs)}
    results = {name for each in program.codes for name in each.node.outputs if name} - views.keys()
    outputs: dict[str, str] = {}
    for value in program.graph.outputs:
        source = root(value.name)
        if source in results and source not in outputs:
            outputs[source] = f"out.{program.ident(value.name)}"
        else:
            result.copies.append((source, value.name))
    for value in program.graph.inputs:
        for name in (value.name, *(level.offsets for level in program.levels(value.name))):
            result.places[name] = f"in.{program.ident(name)}"
    result.places |= outputs
    own = {name for name in results - outputs.keys() if not program.is_known(name)}
    _allocate(result, {name: span for name, span in spans.items() if name in own}, makers)
    for name in dict.fromkeys([*read, *(source for source, _ in result.copies)]):
        if name in program.graph.constants:
            ctype, offset = program.ctype(name), store.add(program.graph.constants[name])
            result.point(name, f"const {ctype}", f"weights_.at<{ctype}>({offset})")
        elif name not in program.memory and program.is_known(name):
            result.sized.append(name)
            _member(result, name)
    for name, (source, start) in views.items():
        if source in result.places:
            place = result.places[source]
            result.places.setdefault(name, f"({place} + {start})" if start.terms else place)
    return result


def _allocate(
    plan: Plan, spans: dict[str, tuple[int, int]], makers: dict[str, tuple[str, WrittenNode]]
) -> None:
    """Adds memory for values. After the last step that reads a value, a later value of the same
    type and size reuses its memory.

    ``spans``: the first and last step that use each value. ``makers``: for each value, the first
    value that is written to its memory, and the node of that first value.
    """
    program = plan.program
    free: dict[tuple[str, str], list[Member]] = defaultdict(list)
    in_use = list[tuple[int, Member]]()
    for name, (first, last) in sorted(spans.items(), key=lambda each: each[1][0]):
        output, code = makers[name]
        if name == output and not _is_needed(plan, code, name):
            plan.unread.add(name)
            continue
        over = [each for each in in_use if each[0] < first]
        for each in sorted(over, key=lambda each: each[0]):
            in_use.remove(each)
            free[each[1].ctype, str(each[1].size)].append(each[1])
        key = program.ctype(name), str(program.most(name))
        if free[key]:
            member = free[key].pop()
            plan.point(name, member.ctype, f"{member.ident}_.data()")
        else:
            member = _member(plan, name)
        in_use.append((last, member))
    for name in program.memory:
        if name not in plan.places:
            _member(plan, name)


def _is_needed(plan: Plan, code: WrittenNode, name: str) -> bool:
    """Returns whether a value needs memory: it is read, or is the first output of its node, or its
    node keeps states for the next call.
    """
    is_held = any(isinstance(step, Layer) and goes_on(plan.program, step) for step in code.codes)
    return is_held or name == code.node.outputs[0] or name in plan.used


def _member(plan: Plan, name: str) -> Member:
    program = plan.program
    ident = f"{program.ident(name)}_memory"
    size = program.most(name)
    if size.names & program.inner.keys():
        raise UnsupportedError(f"{name!r}: the size {size} has no known maximum")
    member = Member(ident, program.ctype(name), size)
    plan.members.append(member)
    plan.point(name, member.ctype, f"{ident}_.data()")
    return member


_MEANINGS = {
    "T": "steps a sequence",
    "N": "sequences",
    "W": "steps of all sequences",
}


def generate(
    program: Program, store: Store, *, name: str, embed: bool = False, threads: int = 1
) -> dict[str, str | bytes]:
    """Returns contents by file name: the headers of the model and the kernels, weights (unless
    ``embed``), example, CMakeLists.txt.

    ``name``: the name of the files and of the namespace. ``store``: the store that `initialize`
    made of this program. ``threads``: the maximum number of threads of a model.

    Raises `UnsupportedError` for a store of a different program, and `ValueError` for ``threads``
    other than 1 to 64.

    >>> x, y = onernn.Value("x", "float32", (None, 2)), onernn.Value("y")
    >>> relu = onernn.Node("Relu", ("x",), ("y",))
    >>> model = onernn.Graph("relu", (x,), (y,), (relu,), {})
    >>> from onernn.engine.emit import generate, infer_shapes, initialize, parse
    >>> program = parse(model)
    >>> shapes = infer_shapes(program)
    >>> "relu.hpp" in generate(program, initialize(program), name="relu")
    True
    """
    check_name(name)
    if not 1 <= threads <= MOST_THREADS:
        raise ValueError(f"threads: expected 1 to {MOST_THREADS}, got {threads}")
    if store.packed_for is not program:
        raise UnsupportedError(f"store: expected the result of initialize for {program.graph.name}")
    context = _Header(program, store, threads).context()
    data = store.whole()
    context |= {
        "name": name,
        "version": metadata.version("onernn"),
        "source": Path(program.graph.name).name,
        "threads": threads,
        "weights_size": len(data),
        "fingerprint": int.from_bytes(data[8:16], "little"),
        "embed": _words(data) if embed else (),
    }
    files: dict[str, str | bytes] = {
        f"{name}.hpp": render("model.hpp.jinja", **context),
        "main.cpp": render("main.cpp.jinja", **context),
        "CMakeLists.txt": render("CMakeLists.txt.jinja", **context),
    }
    kernels = list_included(f"{kernel}.hpp" for kernel in context["kernels"])
    files |= {f"onernn/{header}": text_of(header) for header in kernels}
    return files if embed else {**files, f"{name}.weights": data}


def check_name(name: str) -> str:
    """Returns the name if it is valid in C++. Raises `ShapeError` for other names."""
    if (usual := namespace(name)) != name:
        raise ShapeError(f"--name {name}: expected a C++ name, such as {usual}")
    return name


def limits(program: Program) -> list[Size]:
    """Returns the sizes that each call checks: the call is refused if one of them is negative."""
    calls = (s for s in program.steps if isinstance(s, Call) and s.function == "natural")
    sizes = (size for call in calls for size in call.arguments if isinstance(size, Size))
    return [size for size in dict.fromkeys(sizes) if size.names.isdisjoint(program.inner)]


def list_made_levels(program: Program) -> list[LodLevel]:
    """Returns the LoD levels that the model computes: all levels of outputs that no input has."""
    inputs = {value.name for value in program.graph.inputs}
    levels = (level for each in program.graph.outputs for level in program.levels(each.name))
    return [level for level in dict.fromkeys(levels) if level.name not in inputs]


def list_found_sizes(program: Program) -> list[str]:
    """Returns the names of the outputs' sizes that are known only after a call."""
    sizes = [size for each in program.graph.outputs for size in program.shape(each.name)]
    sizes += [level.count for level in list_made_levels(program)]
    names = {name for size in sizes for name in size.names}
    return [name for name in program.inner if name in names]


def _words(data: bytes) -> list[str]:
    words = [f"0x{int.from_bytes(data[at : at + 8], 'little'):x}" for at in range(0, len(data), 8)]
    return [", ".join(words[at : at + 8]) for at in range(0, len(words), 8)]


class _Header:
    """The values of the variables in the C++ templates of a model."""

    def __init__(self, program: Program, store: Store, threads: int) -> None:
        self.program, self.plan, self.store = program, plan(program, store), store
        self.cells: dict[CellCode, str] = {}
        self.shared: dict[tuple[str, str], dict[str, str]] = {}
        self.kernels = {"formulas", "memory", "status", "serial" if threads == 1 else "team"}
        self.depth = 0
        codes = (place[0] for place in store.places.values())
        stored = {code.stored for code in codes if isinstance(code, CellCode)} | {store.stored}
        self.stored = stored - {"float", "double"}  # the types that only store elements
        self.kernels |= {"stored"} if self.stored else set()
        self.kernels |= {"quads"} if BYTES in self.stored else set()

    def context(self) -> dict[str, Any]:
        program, plan = self.program, self.plan
        steps = list(map(self._step, plan.steps))
        before: dict[int, list[dict[str, Any]]] = defaultdict(list)
        for source, out in plan.copies:
            shape = program.shape(out)
            plan.places[name_kept(out, "copy")] = f"out.{program.ident(out)}"
            copy = self._render(Call("copy", name_kept(out, "copy"), source, volume(shape)))
            code = textwrap.indent(copy, 4 * " ")
            steps.append({"title": f"{out} is {source}", "code": code, "depth": 0})
        first: dict[str, int] = {}
        for at, each in enumerate(plan.steps):
            first = dict.fromkeys(finds(each.codes), at) | first
        for name in plan.sized:
            sizes = sizes_in(program, name)
            code = render("step_sizes.jinja", out=plan.place(name), sizes=sizes)
            names = frozenset[str]().union(*(size.names for size in sizes))
            at = 1 + max((first[name] for name in names if name in first), default=-1)
            depth = steps[at]["depth"] if at else 0
            code = textwrap.indent(code, "  " * (2 + depth))
            before[at].append({"title": name, "code": code, "depth": depth})
        steps = [
            step for at, each in enumerate([*steps, None]) for step in (*before[at], each) if step
        ]
        words = {word for step in steps for word in re.findall(r"\w+", step["code"])}
        members = [
            self._member(m.ident, f"onernn::Memory<{m.ctype}>", m.size) for m in plan.members
        ]
        inputs = [part for value in program.graph.inputs for part in self._input(value)]
        outputs = [self._output(value) for value in program.graph.outputs]
        found_by_call = list(self._list_found())
        checked = [part["offsets_of"] for part in inputs if part["offsets_of"]]
        self.kernels |= {"sequences"} if checked else set()
        open_sizes = [name for name in sizes_of(program) if name not in program.static]
        longest = {str(program.size(size)): name for name, size in program.longest.items()}
        meanings = {n: f"words of the longest sentence of {name}" for n, name in longest.items()}
        meanings |= _MEANINGS
        fixed = [(k, v) for k, v in program.static.items() if k in sizes_of(program)]
        return {
            "title": f"{len(program.graph.nodes)} operators of {Path(program.graph.name).name}.",
            "sizes": [(name, meanings.get(name, "")) for name in open_sizes],
            "many": {"T", "W", *longest, *(str(part["words"]) for part in checked)},
            "fixed": fixed,
            "limits": limits(program),
            "static": list(program.static.items()),
            "inputs": inputs,
            "outputs": [*outputs, *found_by_call],
            "found_by_call": found_by_call,
            "inner": list(program.inner),
            "missing": list(self._missing()),
            "steps": steps,
            "cells": [{"code": code, "name": name} for code, name in self.cells.items()],
            "members": [*members, *self.shared.values()],
            "held": list(self._state_members()),
            "locals": [local for local in plan.locals if local.ident in words],
            "kernels": sorted(self.kernels),
            "stored": sorted(self.stored),
            "streams": not program.no_step,
            "no_step": program.no_step,
            "checked": checked,
        }

    def _input(self, value: Value) -> Iterator[dict[str, Any]]:
        program, shape = self.program, self.program.shape(value.name)
        yield self._array(value.name, write_shape(shape), volume(shape), offsets_of=None)
        for level in reversed(program.levels(value.name)):
            count = level.count + 1
            comment = f"({count}), where each sentence begins; the last is {level.words}"
            longest = program.longest.get(value.name) if level.level == -1 else None
            offsets = {
                "ident": program.ident(level.offsets),
                "count": level.count,
                "words": level.words,
                "longest": "" if longest is None else program.size(longest),
            }
            yield self._array(level.offsets, comment, count, offsets_of=offsets)

    def _array(self, name: str, comment: str, count: Size, **more: Any) -> dict[str, Any]:
        """Returns an array of the structure Inputs or Outputs. If ``name`` is not a value, the
        array holds offsets.
        """
        program = self.program
        ctype = program.ctype(name) if name in program.types else "std::int64_t"
        ident = program.ident(name)
        return {"ident": ident, "ctype": ctype, "comment": comment, "count": count, **more}

    def _output(self, value: Value) -> dict[str, Any]:
        program, shape = self.program, self.program.shape(value.name)
        comment, most = write_shape(shape), program.most(value.name)
        if most.names & program.inner.keys():
            raise UnsupportedError(f"output {value.name!r}: the size {most} has no known maximum")
        if volume(shape).names & program.inner.keys():
            comment += f", at most {most} numbers"
        for level in program.levels(value.name)[-1:]:
            is_fed = level.name in {each.name for each in program.graph.inputs}
            where = f"those of {level.name}" if is_fed else f"{program.ident(level.offsets)} tells"
            comment += f", sequences as {where}"
        return self._array(value.name, comment, most)

    def _list_found(self) -> Iterator[dict[str, Any]]:
        program = self.program
        for level in list_made_levels(program):
            name, count = level.offsets, level.count + 1
            most = count.most().substitute(program.inner).most()
            code = f"std::copy_n({self.plan.place(name)}, {count}, out.{program.ident(name)})"
            yield self._array(name, f"({count}), where each sentence begins", most, code=code)
        for name in list_found_sizes(program):
            comment, code = f"at most {program.inner[name]}", f"*out.{name} = {name}"
            out = {"ident": name, "ctype": "std::int64_t", "comment": comment}
            yield {**out, "count": Size.of(1), "code": code}

    def _member(self, ident: str, type: str, size: Size) -> dict[str, str]:
        sizes = {to: self._most(size, to) for to in ("most", "real")}
        return {"ident": ident, "type": type, **sizes}

    def _most(self, size: Size, sizes: str) -> str:
        names = {name: f"{sizes}.{name}" for name in size.names}
        return str(size.substitute({**names, **self.program.static}))

    def _state_members(self) -> Iterator[dict[str, str]]:
        program = self.program
        states = [state.held for state in list_kept_states(program)]
        states += [step.held for step in program.steps if isinstance(step, DelayLine)]
        names = {f"{program.ident(name)}_memory" for name in states}
        for member in self.plan.members:
            if member.ident in names:
                most = self._most(member.size, "most_")
                yield {"ident": member.ident, "ctype": member.ctype, "most": most}

    def _missing(self) -> Iterator[tuple[str, str, str]]:
        """Yields (condition, value, reason) of each branch that cannot run: the call ends if the
        condition has this value.
        """
        for each in self.program.codes:
            if any(isinstance(step, Mark) and step.kind == "refuse" for step in each.codes):
                holds = "true" if each.mark == "if" else "false"
                yield each.node.inputs[0], holds, each.node.attrs.refused

    def _step(self, code: WrittenNode) -> dict[str, Any]:
        title, depth = self._title(code), self.depth - (code.mark in ("else", "end"))
        steps = [step for step in code.codes if step.makes in self.plan.places or not step.makes]
        return {"title": title, "code": "".join(map(self._place, steps)), "depth": depth}

    def _place(self, step: Step) -> str:
        if isinstance(step, Mark) and step.kind in ("else", "end", "again"):
            self.depth -= 1
        text = textwrap.indent(self._render(step), "  " * (2 + self.depth))
        if isinstance(step, Mark) and step.kind in ("if", "else", "while"):
            self.depth += 1
        return text

    def _title(self, code: WrittenNode) -> str:
        program, node = self.program, code.node
        if code.mark in ("if", "else"):
            return f"{'where' if code.mark == 'if' else 'where not'} {node.inputs[0]}"
        name = next(filter(None, node.outputs))
        value = f"{program.ident(name)} {write_shape(program.shape(name))}"
        takes = ", ".join(program.ident(name) for name in node.inputs if name)
        op = node.attributes["spec"].cell.name if node.op == "Rnn" else node.op
        return f"{value} = {op}({takes})"

    def _render(self, step: Step) -> str:
        place = self.plan.place
        if isinstance(step, Layer):
            used = self.plan.places.__contains__
            more = {"layer": step, **self._recurrent(step)}
            return render("step_layer.jinja", place=place, used=used, **more)
        if isinstance(step, Call):
            self.kernels |= {header_of(step.function)}
            text = call(step, place, self.store)
            return render("step_call.jinja", call=text, checks=step.checks)
        if isinstance(step, Mark):
            return render("step_mark.jinja", mark=step, place=place)
        if isinstance(step, DelayLine):
            of = {"ctype": self.program.ctype(step.out), "out": place(step.out)}
            return render("step_delay_line.jinja", step=step, held=place(step.held), **of)
        ctype, step = self.program.ctype, step.merged
        real, to = ctype(step.reads[-1].name), ctype(step.out.name)
        return render(
            "step_nest.jinja",
            loops=list(zip(INDICES, step.loops, strict=False)),
            out=element(step.out, place),
            formula=formula(step, place, real, to),
        )

    def _recurrent(self, layer: Layer) -> dict[str, Any]:
        runs = []
        for run in layer.runs:
            code, fields = self.store.places[run]
            if code not in self.cells:
                base = "".join(part.title() for part in code.spec.cell.value.split("_"))
                same = sum(name.rstrip("0123456789") == base for name in self.cells.values())
                self.cells[code] = f"{base}{same + 1 if same else ''}"
                self.kernels |= {"recurrent", code.kernel}
            cell = self.cells[code]
            memory = name_kept(cell.lower(), "runs")
            member = self._find_shared(memory, f"onernn::Recurrent<{cell}>", layer.count)
            runs.append({"is": run, "fields": fields, "member": member})
        batching = self._find_shared("batching", "onernn::Batching", layer.count)
        return {"runs": runs, "batching": batching, "streams": goes_on(self.program, layer)}

    def _find_shared(self, name: str, type: str, count: Size) -> str:
        key = type, str(count)
        if key not in self.shared:
            self.shared[key] = self._member(self.program.new_ident(name), type, count)
        return f"{self.shared[key]['ident']}_"
