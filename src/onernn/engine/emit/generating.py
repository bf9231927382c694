"""The last step: every value gets a place, and templates are filled."""

from __future__ import annotations

import re
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import field
from importlib import metadata
from pathlib import Path
from typing import Any

from onernn.backend.compiled.packing import BYTES
from onernn.backend.process import MOST_THREADS
from onernn.engine.emit.rendering import INDICES, CellCode, Store, call, element, formula, render
from onernn.engine.emit.streaming import goes_on
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
)
from onernn.ir.errors import ShapeError, UnsupportedError
from onernn.ir.graph import Value
from onernn.ir.records import dataclass
from onernn.ir.types import Size, volume, write_shape
from onernn.kernels import header_of, list_included, text_of


@dataclass
class Member:
    """Memory of a model."""

    ident: str
    ctype: str
    size: Size


@dataclass(frozen=True)
class Local:
    """A pointer that a call begins with."""

    ident: str
    ctype: str
    expression: str
    comment: str


@dataclass
class Plan:
    """C++ expressions of values, and the memory that some of them are in."""

    program: Program
    places: dict[str, str] = field(default_factory=dict)
    members: list[Member] = field(default_factory=list)
    locals: list[Local] = field(default_factory=list)
    steps: list[WrittenNode] = field(default_factory=list)
    copies: list[tuple[str, str]] = field(default_factory=list)  # (from, output)
    used: set[str] = field(default_factory=set)
    unread: set[str] = field(default_factory=set)  # outputs that nobody wants
    sized: list[str] = field(default_factory=list)  # integers made of sizes

    def place(self, name: str) -> str:
        return "nullptr" if name in self.unread else self.places[name]

    def point(self, name: str, ctype: str, expression: str) -> None:
        """A pointer named after the value: no word of a template ends like it."""
        ident = f"{self.program.ident(name)}_at"
        comment = write_shape(self.program.shape(name))
        self.locals.append(Local(ident, ctype, expression, comment))
        self.places[name] = ident


def plan(program: Program, store: Store) -> Plan:
    """Returns places for all values that are read."""
    result = Plan(program)
    views = program.views

    def root(name: str) -> str:
        return views[name][0] if name in views else name

    result.steps += [each for each in program.codes if each.codes]
    last = {root(name): at for at, each in enumerate(result.steps) for name in each.reads}
    first = _first(result, last, root)
    result.used = set(last) | {root(value.name) for value in program.graph.outputs}
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
    _allocate(result, first, last, own)
    read = [root(name) for each in result.steps for name in each.reads]
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


def _first(
    plan: Plan, last: dict[str, int], root: Callable[[str], str]
) -> dict[int, list[tuple[str, str, WrittenNode]]]:
    """Returns the values whose memory a step is the first to use, each with what is made there.

    A loop keeps what its next turn or a later step reads for all of its turns: ``last`` changes.
    """
    first: dict[str, tuple[int, str, WrittenNode]] = {}
    begins, loops = list[int](), list[tuple[int, int]]()
    for at, code in enumerate(plan.steps):
        for output in filter(None, code.node.outputs):
            first.setdefault(root(output), (at, output, code))
        if code.mark == "while":
            begins.append(at)
        if code.mark == "again":
            loops.append((begins.pop(), at))
    for begin, end in loops:  # inner ones first
        for name, (at, output, code) in first.items():
            if at <= begin <= last.get(name, -1) < end:
                last[name] = end
            elif begin <= at <= end < last.get(name, -1):
                first[name] = begin, output, code
    by_step: dict[int, list[tuple[str, str, WrittenNode]]] = {}
    for name, (at, output, code) in first.items():
        by_step.setdefault(at, []).append((name, output, code))
    return by_step


def _allocate(
    plan: Plan,
    first: dict[int, list[tuple[str, str, WrittenNode]]],
    last: dict[str, int],
    own: set[str],
) -> None:
    """Memory of the same type and size is used again when nobody reads it any more.

    ``own``: the values that get memory.
    """
    program = plan.program
    free: dict[tuple[str, str], list[Member]] = {}
    in_use: dict[str, Member] = {}
    for at in range(len(plan.steps)):
        for name, output, code in first.get(at, ()):
            if name not in own or name in plan.places:
                continue
            if name == output and not _is_needed(plan, code, name):
                plan.unread.add(name)
                continue
            key = program.ctype(name), str(program.most(name))
            if free.get(key):
                member = free[key].pop()
                plan.point(name, member.ctype, f"{member.ident}_.data()")
            else:
                member = _member(plan, name)
            in_use[name] = member
        for name in list(in_use):
            if last.get(name, -1) <= at:
                member = in_use.pop(name)
                free.setdefault((member.ctype, str(member.size)), []).append(member)
    for name in program.memory:
        if name not in plan.places:
            _member(plan, name)


def _is_needed(plan: Plan, code: WrittenNode, name: str) -> bool:
    """Returns whether a value is read; a step keeps the final states in any case."""
    is_held = any(isinstance(step, Layer) and goes_on(plan.program, step) for step in code.codes)
    return is_held or name == code.node.outputs[0] or name in plan.used


def _member(plan: Plan, name: str) -> Member:
    program = plan.program
    ident = f"{program.ident(name)}_memory"
    size = program.most(name)
    if size.names & program.inner.keys():
        raise UnsupportedError(f"{name!r}: a size {size} that nobody bounds")
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
    """File names and contents: the model's header and those of the kernels, weights (unless
    ``embed``), example, CMakeLists.txt.

    ``name``: of files and namespace. ``store``: what `initialize` made of this program.
    ``threads``: the most that a model may use.
    """
    checked_name(name)
    if not 1 <= threads <= MOST_THREADS:
        raise ValueError(f"threads: expected 1 to {MOST_THREADS}, got {threads}")
    if store.packed_for is not program:
        raise UnsupportedError(f"{program.graph.name}: pass what initialize made of this program")
    context = _context(program, store, name, threads)
    data = store.whole()
    context |= {"weights_size": len(data), "fingerprint": int.from_bytes(data[8:16], "little")}
    context["embed"] = _words(data) if embed else ()
    files: dict[str, str | bytes] = {
        f"{name}.hpp": render("model.hpp.jinja", **context),
        "main.cpp": render("main.cpp.jinja", **context),
        "CMakeLists.txt": render("CMakeLists.txt.jinja", **context),
    }
    kernels = list_included(f"{kernel}.hpp" for kernel in context["kernels"])
    files |= {f"onernn/{header}": text_of(header) for header in kernels}
    return files if embed else {**files, f"{name}.weights": data}


def checked_name(name: str) -> str:
    """Returns the name, one of C++. Raises `ShapeError` for others."""
    if (usual := namespace(name)) != name:
        raise ShapeError(f"--name {name}: expected a C++ name, such as {usual}")
    return name


def limits(program: Program) -> list[Size]:
    """Returns sizes that are negative in a call that is refused."""
    steps = (step for each in program.codes for step in each.codes)
    calls = (step for step in steps if isinstance(step, Call) and step.function == "natural")
    sizes = (size for call in calls for size in call.arguments if isinstance(size, Size))
    return [size for size in dict.fromkeys(sizes) if size.names.isdisjoint(program.inner)]


def made_levels(program: Program) -> list[LodLevel]:
    """Returns the levels of outputs that are none of the inputs'."""
    inputs = {value.name for value in program.graph.inputs}
    levels = (level for each in program.graph.outputs for level in program.levels(each.name))
    return [level for level in dict.fromkeys(levels) if level.name not in inputs]


def found_sizes(program: Program) -> list[str]:
    """Returns the names of the outputs' sizes that are known only after a call."""
    sizes = [size for each in program.graph.outputs for size in program.shape(each.name)]
    sizes += [level.count for level in made_levels(program)]
    names = {name for size in sizes for name in size.names}
    return [name for name in program.inner if name in names]


def _context(program: Program, store: Store, name: str, threads: int) -> dict[str, Any]:
    result = plan(program, store)
    return _Header(program, result, store, threads).context() | {
        "name": name,
        "version": metadata.version("onernn"),
        "source": Path(program.graph.name).name,
        "threads": threads,
        "stored": sorted(_list_store_names(store)),
    }


def _list_store_names(store: Store) -> set[str]:
    """C++'s names of what matrices are stored as, where that is not what they are computed in."""
    codes = [place[0] for place in store.places.values()]
    result = {code.stored for code in codes if isinstance(code, CellCode)} | {store.stored}
    return result - {"float", "double"}


def _words(data: bytes) -> list[str]:
    """Lines of numbers of 64 bits."""
    words = [f"0x{int.from_bytes(data[at : at + 8], 'little'):x}" for at in range(0, len(data), 8)]
    return [", ".join(words[at : at + 8]) for at in range(0, len(words), 8)]


class _Header:
    def __init__(self, program: Program, plan: Plan, store: Store, threads: int) -> None:
        self.program, self.plan, self.store = program, plan, store
        self.cells: dict[CellCode, str] = {}
        self.shared: dict[tuple[str, str], dict[str, str]] = {}
        self.kernels = {"formulas", "memory", "status", "serial" if threads == 1 else "team"}
        self.depth = 0
        self.kernels |= {"stored"} if _list_store_names(store) else set()
        self.kernels |= {"quads"} if BYTES in _list_store_names(store) else set()

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
        found_by_call = list(self._found_by_call())
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
            "streams": not program.no_step,
            "no_step": program.no_step,
            "checked": checked,
        }

    def _input(self, value: Value) -> Iterator[dict[str, Any]]:
        """Yields an input's array, and its offsets where it is ragged."""
        program, shape = self.program, self.program.shape(value.name)
        array = {"ident": program.ident(value.name), "ctype": program.ctype(value.name)}
        yield {**array, "comment": write_shape(shape), "count": volume(shape), "offsets_of": None}
        for level in reversed(program.levels(value.name)):
            ident, count = program.ident(level.offsets), level.count + 1
            comment = f"({count}), where each sentence begins; the last is {level.words}"
            offsets = {"ident": ident, "count": level.count, "words": level.words, "longest": ""}
            if level.level == -1 and value.name in program.longest:
                offsets["longest"] = program.size(program.longest[value.name])
            array = {"ident": ident, "ctype": "std::int64_t", "comment": comment}
            yield {**array, "count": count, "offsets_of": offsets}

    def _output(self, value: Value) -> dict[str, Any]:
        program, shape = self.program, self.program.shape(value.name)
        comment, most = write_shape(shape), program.most(value.name)
        if most.names & program.inner.keys():
            raise UnsupportedError(f"output {value.name!r}: a size {most} that nobody bounds")
        if volume(shape).names & program.inner.keys():
            comment += f", at most {most} numbers"
        for level in program.levels(value.name)[-1:]:
            is_fed = level.name in {each.name for each in program.graph.inputs}
            where = f"those of {level.name}" if is_fed else f"{program.ident(level.offsets)} tells"
            comment += f", sequences as {where}"
        array = {"ident": program.ident(value.name), "ctype": program.ctype(value.name)}
        return {**array, "comment": comment, "count": most}

    def _found_by_call(self) -> Iterator[dict[str, Any]]:
        """Yields the offsets and sizes of outputs that are known only after a call."""
        program = self.program
        for level in made_levels(program):
            ident, count = program.ident(level.offsets), level.count + 1
            comment, place = (
                f"({count}), where each sentence begins",
                self.plan.place(level.offsets),
            )
            out = {"ident": ident, "ctype": "std::int64_t", "comment": comment}
            most = count.most().put(program.inner).most()
            yield {**out, "count": most, "code": f"std::copy_n({place}, {count}, out.{ident})"}
        for name in found_sizes(program):
            comment, code = f"at most {program.inner[name]}", f"*out.{name} = {name}"
            out = {"ident": name, "ctype": "std::int64_t", "comment": comment}
            yield {**out, "count": Size.of(1), "code": code}

    def _member(self, ident: str, type: str, size: Size) -> dict[str, str]:
        """Memory, for as much as a model is made for."""
        static = self.program.static
        names = {name: f"most.{name}" for name in size.names if name not in static}
        return {"ident": ident, "type": type, "most": str(size.put({**static, **names}))}

    def _state_members(self) -> Iterator[dict[str, str]]:
        """Memory of states with which a step goes on."""
        program = self.program
        steps = [step for each in program.codes for step in each.codes]
        layers = (step for step in steps if isinstance(step, Layer) and goes_on(program, step))
        states = [state.held for layer in layers for state in layer.states]
        states += [step.held for step in steps if isinstance(step, DelayLine)]
        names = {f"{program.ident(name)}_memory" for name in states}
        for member in self.plan.members:
            if member.ident in names:
                sizes = {name: f"most_.{name}" for name in member.size.names}
                most = member.size.put({**sizes, **program.static})
                yield {"ident": member.ident, "ctype": member.ctype, "most": str(most)}

    def _missing(self) -> Iterator[tuple[str, str, str]]:
        """Yields the branches that end a call: where which condition holds, or does not, and
        why.
        """
        for each in self.program.codes:
            if any(isinstance(step, Mark) and step.kind == "refuse" for step in each.codes):
                holds = "true" if each.mark == "if" else "false"
                yield each.node.inputs[0], holds, each.node.attrs.refused

    def _step(self, code: WrittenNode) -> dict[str, Any]:
        """Returns a node's comment, its code, and how many branches are around it."""
        title, depth = self._title(code), self.depth - (code.mark in ("else", "end"))
        steps = [step for step in code.codes if step.makes in self.plan.places or not step.makes]
        return {"title": title, "code": "".join(map(self._place, steps)), "depth": depth}

    def _place(self, step: Step) -> str:
        """Code inside of the branches around it."""
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
        """Names of the cells' code and memory; members for them."""
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
        """Returns a member that all layers with so many sentences have in common."""
        key = type, str(count)
        if key not in self.shared:
            self.shared[key] = self._member(self.program.new_ident(name), type, count)
        return f"{self.shared[key]['ident']}_"
