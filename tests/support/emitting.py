"""Generated C++ compiled and run: several models in one program, arrays in files."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from onernn import Graph, Ragged
from onernn.engine.emit.generating import generate, limits, list_found_sizes, list_made_levels
from onernn.engine.emit.pipeline import infer_shapes, initialize, parse
from onernn.engine.inferring import sizes_of
from onernn.engine.program import CTYPES, Program
from onernn.ir.graph import Value
from onernn.ir.ragged import data_of
from onernn.ir.types import Size
from support.checking import assert_close
from support.compiling import EMULATOR, PLAIN, compile_program

DRIVER = """
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>
template <class T>
std::vector<T> read(const std::string& file) {
  std::FILE* stream = std::fopen(file.c_str(), "rb");
  if (!stream) std::exit(90);
  std::vector<T> all;
  T one;
  while (std::fread(&one, sizeof one, 1, stream) == 1) all.push_back(one);
  std::fclose(stream);
  return all;
}
template <class T>
void write(const std::string& file, const std::vector<T>& all) {
  std::FILE* stream = std::fopen(file.c_str(), "wb");
  if (all.size()) std::fwrite(all.data(), sizeof(T), all.size(), stream);
  std::fclose(stream);
}
template <class T>
std::vector<T> garbage(std::size_t count) {
  std::vector<T> all(count);
  if (count) std::memset(all.data(), 0x7b, count * sizeof(T));
  return all;
}
inline int team(int most) {
  const char* wish = std::getenv("ONERNN_TEAM");
  return wish ? std::atoi(wish) : -most;
}
"""
"""Negative: exactly so many threads take part, in every product."""


@dataclass
class Emitted:
    """A model's program, the files generated of it, and the folder where they are compiled."""

    name: str
    program: Program
    static: Mapping[str, int]
    files: Mapping[str, str | bytes]
    embed: bool
    threads: int
    folder: Path = Path()

    def sizes(self, feed: Mapping[str, Any]) -> dict[str, int]:
        """What the arrays say of the sizes that are open."""
        return {size.name: number for size, number in self._axes(feed) if size.name}

    def takes(self, feed: Mapping[str, Any]) -> bool:
        """Whether the header tells these arrays, for some sizes."""
        sizes = {**self.static, **self.sizes(feed)}
        least = [(size.substitute(sizes).number or 0) >= 0 for size in limits(self.program)]
        same = [size.substitute(sizes).number == number for size, number in self._axes(feed)]
        return all(least) and all(same)

    def lacks(self, status: int) -> bool:
        """Whether a run ended in a branch that the header names as not generated."""
        return bool(self.program.refused) and status == 85

    @property
    def steps(self) -> bool:
        """Whether `run` can go word by word: the words are the first axis of all that has them."""
        face = (*self.program.graph.inputs, *self.program.graph.outputs)
        shapes = [self.program.shape(value.name) for value in face]
        behind = [size for shape in shapes for size in shape[1:]]
        first = [size for shape in shapes for size in shape[:1] if "T" in size.names]
        return not (
            self.program.no_step
            or any("T" in size.names for size in behind)
            or any(size.name != "T" for size in first)
        )

    def _axes(self, feed: Mapping[str, Any]) -> Iterator[tuple[Size, int]]:
        for value in self.program.graph.inputs:
            array = feed[value.name]
            yield from zip(self.program.shape(value.name), data_of(array).shape, strict=True)
            if isinstance(array, Ragged):
                counts = [level.count for level in self.program.levels(value.name)]
                given = [len(offsets) - 1 for offsets in array.lod]
                yield from zip(map(self.program.size, counts), given, strict=True)
            if value.name in self.program.longest:
                longest = self.program.size(self.program.longest[value.name])
                yield longest, int(array.lengths.max(initial=0))

    def run(self, feed: Mapping[str, Any], like: Mapping[str, Any], mode: str = "infer") -> Any:
        """The exit status, and the outputs, flat. ``like``: their number of elements and types.

        infer: twice, the second outputs are compared with the first by the program. What the call
        tells of sizes and sentences has to be that of ``like``.
        """
        for value in self.program.graph.inputs:
            ident, array = self.program.ident(value.name), feed[value.name]
            data_of(array).astype(self.program.dtype(value.name)).tofile(self._file(ident))
            if isinstance(array, Ragged):
                levels = self.program.levels(value.name)
                for level, offsets in zip(levels, array.lod, strict=True):
                    file = self._file(self.program.ident(level.offsets))
                    np.array(offsets, np.int64).tofile(file)
        counts = [data_of(like[v.name]).size for v in self.program.graph.outputs]
        counts += [offsets.size for offsets in self._lods(like).values()]
        counts += [1 for _ in list_found_sizes(self.program)]
        np.array(counts, np.int64).tofile(self._file("counts"))
        sizes = self.sizes(feed)
        words = [str(sizes.get(k, 1)) for k in sizes_of(self.program) if k not in self.static]
        done = subprocess.run(
            [*EMULATOR, str(self.folder / "all"), self.name, mode, *words],
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            return done.returncode, done.stderr
        if mode == "infer":
            self._check_told(like, {**self.static, **sizes})
        return 0, {
            v.name: np.fromfile(
                self._file(self.program.ident(v.name)),
                self.program.dtype(v.name).replace("bool", "uint8"),
            )
            for v in self.program.graph.outputs
        }

    def _lods(self, like: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Where sentences of outputs begin that are none of the inputs'."""
        made, found = list_made_levels(self.program), dict[str, np.ndarray]()
        for value in self.program.graph.outputs:
            ragged = like[value.name]
            if isinstance(ragged, Ragged):
                pairs = zip(self.program.levels(value.name), ragged.lod, strict=True)
                named = (
                    (self.program.ident(one.offsets), lod) for one, lod in pairs if one in made
                )
                found |= {name: np.array(offsets) for name, offsets in named}
        return found

    def _check_told(self, like: Mapping[str, Any], sizes: Mapping[str, int]) -> None:
        """What the call told of sizes and sentences is that of ``like``."""
        for ident, offsets in self._lods(like).items():
            np.testing.assert_array_equal(np.fromfile(self._file(ident), np.int64), offsets)
        for name in list_found_sizes(self.program):
            sizes = {**sizes, name: int(np.fromfile(self._file(name), np.int64)[0])}
        for value in self.program.graph.outputs:
            shape = [size.substitute(sizes).number for size in self.program.shape(value.name)]
            assert shape == [*data_of(like[value.name]).shape], value.name

    def _file(self, name: str) -> Path:
        return self.folder / f"{self.name}.{name}.bin"


def assert_computes(
    made: Emitted,
    feed: Mapping[str, Any],
    want: Mapping[str, Any],
    mode: str = "infer",
    atol: float = 1e-6,
) -> dict[str, np.ndarray]:
    """Floats under the default tolerance, integers exactly; returns the outputs, flat."""
    status, got = made.run(feed, want, mode)
    assert status == 0, (made.name, status, got)
    for name, expected in want.items():
        flat = data_of(expected).reshape(-1)
        if flat.dtype.kind == "f":
            assert_close(got[name], flat, atol=atol)
        else:
            assert got[name].tolist() == flat.tolist(), name
    return dict(got)


def generated(
    name: str,
    model: Graph,
    *,
    static: Mapping[str, int] | None = None,
    weights: str = "f32",
    declared: Mapping[str, Value] | None = None,
    **options: Any,
) -> Emitted:
    """Not compiled. Raises `UnsupportedError` where no C++ is generated."""
    program = parse(model, declared)
    infer_shapes(program, static)
    files = generate(program, initialize(program, weights), name=name, **options)
    embed, threads = options.get("embed", False), options.get("threads", 1)
    return Emitted(name, program, static or {}, files, embed, threads)


def build(
    models: Mapping[str, Graph], folder: Path, flags: tuple[str, ...] = PLAIN, **options: Any
) -> dict[str, Emitted]:
    """All models as one program; ``options``: as `generated` takes them.

    ``flags`` are CHECKED where every template, layer and view is run: sanitizers more than double
    the time that a compiler takes.
    """
    made = {name: generated(name, model, **options) for name, model in models.items()}
    compile_all(made.values(), folder, flags)
    return made


def compile_all(models: Iterable[Emitted], folder: Path, flags: tuple[str, ...]) -> None:
    """One program of one translation unit."""
    folder.mkdir(parents=True, exist_ok=True)
    sources, table = [DRIVER], []
    for model in models:
        for file, content in model.files.items():
            data = content if isinstance(content, bytes) else content.encode()
            (folder / file).parent.mkdir(exist_ok=True)
            (folder / file).write_bytes(data)
        model.folder, name = folder, model.name
        sources.append(_driver(model))
        table.append(f'  if (name == "{name}") return run_{name}(mode, count - 3, arguments + 3);')
    sources.append(
        "int main(int count, char** arguments) {\n"
        "  const std::string name = arguments[1], mode = arguments[2];\n"
        + "\n".join(table)
        + "\n  return 91;\n}\n"
    )
    (folder / "all.cpp").write_text("\n".join(sources))
    compile_program(folder / "all.cpp", folder / "all", flags, folder)


def _driver(model: Emitted) -> str:
    name, program = model.name, model.program
    free = [size for size in sizes_of(program) if size not in model.static]
    lines = [
        f'#include "{name}.hpp"',
        f"int run_{name}(const std::string& mode, int, char** sizes_given) {{",
    ]
    lines.append(f"  (void)sizes_given; using namespace {name}; Weights weights;")
    if not model.embed:
        lines.append(f'  if (!weights.load("{name}.weights")) return 92;')
    if free:
        lines.append("  Sizes sizes;")
        lines += [
            f"  sizes.{size} = std::atoll(sizes_given[{at}]);" for at, size in enumerate(free)
        ]
    arguments, outputs = [], []
    for value in program.graph.inputs:
        idents = [(program.ident(value.name), program.dtype(value.name))]
        levels = program.levels(value.name)[::-1]
        idents += [(program.ident(level.offsets), "int64") for level in levels]
        for ident, dtype in idents:
            kind = CTYPES[dtype]
            lines.append(f'  const auto {ident} = read<{kind}>("{name}.{ident}.bin");')
            arguments.append(f"{ident}.data()")
    lines.append(f'  const auto counts = read<std::int64_t>("{name}.counts.bin");')
    told = [(program.ident(each.name), program.dtype(each.name)) for each in program.graph.outputs]
    told += [(program.ident(level.offsets), "int64") for level in list_made_levels(program)]
    told += [(size, "int64") for size in list_found_sizes(program)]
    for at, (ident, dtype) in enumerate(told):
        kind = CTYPES[dtype]
        lines.append(f"  auto {ident} = garbage<{kind}>(counts[{at}]), {ident}_again = {ident};")
        outputs.append(ident)
    more = ", sizes" if free else ""
    team = f", team({model.threads})" if model.threads > 1 else ""
    lines.append(f"  Model model(weights{more}{team});")
    lines.append(f"  const Inputs in{{{', '.join(arguments)}}};")
    first = ", ".join(f"{out}.data()" for out in outputs)
    again = ", ".join(f"{out}_again.data()" for out in outputs)
    if not program.no_step:
        lines.append(_stepping(name, program, free, outputs))
    lines.append(f"  Status status = model.infer(in, {{{first}}}{more});")
    lines.append("  if (status != Status::ok) return 80 + static_cast<int>(status);")
    lines.append(f"  status = model.infer(in, {{{again}}}{more});")
    lines.append("  if (status != Status::ok) return 93;")
    for out in outputs:
        lines.append(
            f"  if ({out}.size() && std::memcmp({out}.data(), {out}_again.data(),"
            f" {out}.size() * sizeof {out}[0])) return 94;"
        )
        lines.append(f'  write("{name}.{out}.bin", {out});')
    lines += ["  (void)mode;", "  return 0;", "}"]
    return "\n".join(lines)


def _stepping(name: str, program: Program, free: list[str], outputs: list[str]) -> str:
    """Word by word: the time axis of inputs is cut, pieces of outputs are put side by side.

    Only where T is the first axis of what has it; two rounds, with a reset between them. In the
    second one a state of another stream, the first one's, is in the model before each word.
    """
    lines = ['  if (mode == "step") {', "    State state, other;"]
    lines += ["    for (int round = 0; round < 2; ++round) {", "      model.reset();"]
    time = "sizes.T" if "T" in free else "std::int64_t(0)"
    if "T" in program.static:
        time = f"std::int64_t({program.static['T']})"
    lines.append(f"      for (std::int64_t t = 0; t < {time}; ++t) {{")
    gives, takes = [], []
    for value in program.graph.inputs:
        ident = program.ident(value.name)
        timed = any("T" in size.names for size in program.shape(value.name))
        gives.append(f"{ident}.data(){f' + t * ({ident}.size() / {time})' if timed else ''}")
        levels = program.levels(value.name)[::-1]
        gives += [f"{program.ident(level.offsets)}.data()" for level in levels]
    for value, ident in zip(program.graph.outputs, outputs, strict=False):
        timed = any("T" in size.names for size in program.shape(value.name))
        takes.append(f"{ident}.data(){f' + t * ({ident}.size() / {time})' if timed else ''}")
    more = ", sizes" if free else ""
    call = f"model.step({{{', '.join(gives)}}}, {{{', '.join(takes)}}}{more})"
    lines.append("        if (round == 1 && (model.restore(other) != Status::ok ||")
    lines.append("            model.restore(state) != Status::ok)) return 79;")
    lines.append(f"        const Status s = {call};")
    lines.append("        if (round == 1) model.save(state);")
    lines.append("        if (s != Status::ok) return 80 + static_cast<int>(s);")
    lines += ["      }", "      model.save(other);", "    }"]
    lines += [f'    write("{name}.{out}.bin", {out});' for out in outputs]
    lines += ["    return 0;", "  }"]
    return "\n".join(lines)
