"""Generated code of models whose every name is hostile: the same tokens as with tame names."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from support.compiling import check_syntax
from support.layers import random_layer

from onernn import Cell, Graph, RnnSpec, UnsupportedError
from onernn.engine.emit.pipeline import read_declared, write_cpp
from onernn.engine.program import identifier, namespace
from onernn.ir.errors import ShapeError
from onernn.ir.graph import Node, Value

TEMPLATES = Path(__file__).parents[2] / "src" / "onernn" / "engine" / "emit" / "templates"
INJECTED = [
    "m\nstatic int pwned = (__builtin_trap(), 1);\n//",
    "m\r\nint pwned;",
    "m\vint pwned;\fint pwned2;\u0085int pwned3;\u2028int pwned4;",
    "*/ int pwned; /*",
    "**//pwned",
    "pwned\\",
    "pwned??/",
    "pwned???/",
    "pwned \\ ",
    '"; int pwned; "',
    "';pwned;'",
    'R"(pwned)"',
    "{{ pwned }}{% pwned %}",
    "%s%n pwned",
    "\u202epwned\u2066",
    "\ud800pwned",
    "\x1b[31mpwned",
    "\N{GREEK QUESTION MARK} pwned",
    "x" * 5000,
    "变量",
    "变数",
    "_",
    "__pwned",
    "_Pwned",
    "9",
    " ",
]
# N4950, [lex.key], [lex.digraph]; then macros of the standard library, glibc and windows.h.
WORDS = """
alignas alignof asm auto bool break case catch char char8_t char16_t char32_t class concept const
consteval constexpr constinit const_cast continue co_await co_return co_yield decltype default
delete do double dynamic_cast else enum explicit export extern false float for friend goto if inline
int long mutable namespace new noexcept nullptr operator private protected public register
reinterpret_cast requires return short signed sizeof static static_assert static_cast struct switch
template this thread_local throw true try typedef typeid typename union unsigned using virtual void
volatile wchar_t while and and_eq bitand bitor compl not not_eq or or_eq xor xor_eq final override
import module assert errno offsetof setjmp va_arg stdin stdout stderr NULL EOF NAN INFINITY HUGE_VAL
M_PI M_PIf INT8_MAX INT64_C BUFSIZ RAND_MAX EXIT_SUCCESS SEEK_SET L_tmpnam PRId64 SCNxPTR E2BIG I
min max near far small interface IN OUT TRUE ERROR linux unix major minor count std main exp abs
Inputs Outputs Sizes Model Weights Status Run Team Memory Batch Real most_ weights_ team_ began_
""".split()


def model(called: Callable[[str], str]) -> Graph:
    """Most templates in one model, its values called as told; the third input is ragged."""
    rng = np.random.default_rng(0)

    def few(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32) / 4

    constants = {"table": few(7, 4), "b": few(5), "tags": few(7, 5), "zero": np.zeros(1, np.int64)}
    constants |= {"w": few(4, 5), "most": np.zeros((1, 6), np.float32)}
    gru, lstm = (
        random_layer(spec, 0)
        for spec in (
            RnnSpec(Cell.GRU, 4, 3),
            RnnSpec(Cell.LSTM, 4, 3, layers=2, direction="bidirectional_concat"),
        )
    )
    nodes = [
        ("Gather", "table ids", "embedded", {}),
        ("Rnn", "embedded", "y h", gru),
        ("Rnn", "embedded", "both both_h both_c", lstm),
        ("MatMul", "x w", "product", {}),
        ("Add", "product b", "added", {}),
        ("Softmax", "added", "soft", {"axis": -1}),
        ("ArgMax", "soft", "best", {"axis": -1}),
        ("ReduceMean", "soft zero", "mean", {}),
        ("Transpose", "soft", "turned", {"perm": (1, 0)}),
        ("Tanh", "turned", "tanh", {}),
        ("Identity", "tanh", "same", {}),
        ("CrfDecode", "words tags", "path", {}),
        ("SequencePool", "words", "pooled", {"kind": "max", "empty": 0.0}),
        ("SequencePad", "words most", "padded", {}),
    ]
    inputs = [
        Value(called("ids"), "int64", (None, None)),
        Value(called("x"), "float32", (5, 4)),
        Value(called("words"), "float32", ("W", 5), 1),
    ]
    outputs = "y h both both_c best mean same path pooled padded x".split()
    return Graph(
        f"/somewhere/{called('graph')}.onnx",
        tuple(inputs),
        tuple(Value(called(name)) for name in outputs),
        tuple(
            Node(op, tuple(map(called, takes.split())), tuple(map(called, gives.split())), more)
            for op, takes, gives, more in nodes
        ),
        {called(name): array for name, array in constants.items()},
    )


KEYS = (
    "ids x words table b tags zero w most embedded y h both both_h both_c product added soft best"
    " mean turned tanh same path pooled padded graph"
).split()


@cache
def tokens(text: str) -> tuple[tuple[str, str], ...]:
    """(kind, spelling) as Clang's lexer has them, without comments; directives as they stand."""
    cindex = pytest.importorskip("clang.cindex")
    unit = cindex.Index.create().parse(
        "made.cpp",
        args=["-std=c++17", "-nostdinc", "-trigraphs"],
        unsaved_files=[("made.cpp", text)],
        options=cindex.TranslationUnit.PARSE_INCOMPLETE,
    )
    made = []
    every = unit.get_tokens(extent=unit.cursor.extent)
    found = [(t.kind.name, t.spelling) for t in every if t.kind != cindex.TokenKind.COMMENT]
    spelled = ["", "", *(text for _, text in found), "", ""]
    for at, (kind, text) in enumerate(found):
        # Fields of Inputs and Outputs stand behind a dot: they may be called as anything else is.
        field = spelled[at : at + 2] in (["in", "."], ["out", "."])
        declared = spelled[at + 1] == "*" and spelled[at + 3 : at + 5] == ["=", "nullptr"]
        made.append((kind, f".{text}" if field or declared else text))
    return tuple(made)


def written(graph: Graph, folder: Path) -> dict[str, str]:
    files = write_cpp(graph, folder, name="same_for_all")
    return {file.name: file.read_text() for file in files if file.suffix != ".weights"}


def difference(tame: str, hostile: str) -> str:
    """Where two texts differ in more than a one-to-one renaming of identifiers, "" for nowhere."""
    ours, theirs = tokens(tame), tokens(hostile)
    there: dict[str, str] = {}
    back: dict[str, str] = {}
    for (kind, text), (other_kind, other) in zip(ours, theirs, strict=False):
        if kind != other_kind:
            return f"{text} is {kind}, {other} {other_kind}"
        if kind == "LITERAL":  # the example prints names
            other = re.sub(r'^"\w+\[0\]', '"[0]', other)
            text = re.sub(r'^"\w+\[0\]', '"[0]', text)
        if kind != "IDENTIFIER" and text != other:
            return f"{text}, {other}"
        if there.setdefault(text, other) != other or back.setdefault(other, text) != text:
            return f"{text} was {there[text]}, {other} was {back[other]}"
    return "" if len(ours) == len(theirs) else f"{len(ours)} tokens, {len(theirs)}"


def test_the_comparison_sees_another_token_and_two_names_that_became_one() -> None:
    assert difference("int a = b; // c", "int b = /* d */ a;") == ""
    assert difference("int a = b;", "int a = a;")
    assert difference("int a;", "int a; int b;")
    assert difference("int a; // b", "int a; // b\nint c;")
    assert difference("int a; // b", "int a; // b??/\nint c;\nint d;")
    assert difference("int a;", "int class;")


@pytest.mark.parametrize("stored", ["apart", "embedded"])
def test_hostile_names_give_the_tokens_of_tame_ones_and_code_that_compiles(
    stored: str, tmp_path: Path
) -> None:
    found = {"apart": INJECTED, "embedded": WORDS}[stored]
    tame = written(model(lambda key: f"tame{KEYS.index(key)}q"), tmp_path / "tame")
    for at in range(0, len(found), len(KEYS)):
        chosen = found[at : at + len(KEYS)]
        chosen += [f"more{k}" for k in range(len(KEYS) - len(chosen))]
        names = dict(zip(KEYS, chosen, strict=True))
        folder = tmp_path / str(at)
        made = written(model(names.__getitem__), folder)
        assert made.keys() == tame.keys()
        for file in ("same_for_all.hpp", "main.cpp"):
            assert difference(tame[file], made[file]) == "", (file, chosen)
            assert re.fullmatch(r"[ -~\n]*", made[file]), file
        assert made["CMakeLists.txt"].splitlines()[1:] == tame["CMakeLists.txt"].splitlines()[1:]
        check_syntax(folder / "main.cpp", ("-std=gnu++17",), folder)


def test_no_word_of_a_template_is_taken_for_a_value(tmp_path: Path) -> None:
    """A value called as a template's own variable would be read in its place, without an error."""
    templates = "".join(file.read_text() for file in TEMPLATES.glob("*.jinja"))
    found = sorted(set(re.findall(r"\w+", templates)) | set("abcdefghijklmnopqrstuvwxyz"))
    found.remove("v")  # a field of lanes: the comparison takes `out.v` for an output
    tame = written(model(lambda key: f"tame{KEYS.index(key)}q"), tmp_path / "tame")
    found += [f"more{k}" for k in range(-len(found) % len(KEYS))]
    assert not any(word.endswith(("_at", "_memory_")) for word in found)
    for at in range(0, len(found), len(KEYS)):
        names = dict(zip(KEYS, found[at : at + len(KEYS)], strict=True))
        made = written(model(names.__getitem__), tmp_path / str(at))
        for file in ("same_for_all.hpp", "main.cpp"):
            assert difference(tame[file], made[file]) == "", (file, names)


def test_names_of_values_that_operators_keep_are_taken_from_no_model() -> None:
    made = model(lambda key: {"x": "y\0held_h"}.get(key, key))
    with pytest.raises(UnsupportedError, match="NUL"):
        write_cpp(made, "unused")


@pytest.mark.parametrize("size", ["n", "row", "class", "NAN", "__x", "x_at", "é", "min", "batch"])
def test_sizes_are_not_called_as_variables_of_the_code(size: str, tmp_path: Path) -> None:
    with pytest.raises(ShapeError, match=f"--input .*{size}"):
        read_declared([f"x=float32({size}, 4)"])
    value = Value("x", "float32", (size, 4))  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match="header uses these names"):
        write_cpp(model(str), tmp_path, declared={"x": value})
    assert read_declared(["x=float32(how_many, T)"])


def test_no_identifier_is_reserved_and_models_are_called_as_nothing_global() -> None:
    for word in WORDS:
        made = identifier(word)
        assert made not in set(WORDS) - {
            "main",
            "exp",
            "abs",
            "Run",
            "Team",
            "Memory",
            "Batch",
            "Real",
        }
        assert identifier(made) == made
    for word in ("time", "index", "main", "test", "class", "exp", "2x", "", "é", "--"):
        assert namespace(word).startswith("model")
    assert namespace("My model-1.2") == "my_model_1_2"


def test_headers_of_windows_may_come_first(tmp_path: Path) -> None:
    write_cpp(model(str), tmp_path, name="m", weights="bf16", threads=2)
    headers = "".join(file.read_text() for file in tmp_path.rglob("*.hpp"))
    others = re.findall(r"^#include <(?!immintrin|arm_neon).*", headers, re.M)
    includes = "\n".join(sorted(set(others)))
    (tmp_path / "all.cpp").write_text(
        f'{includes}\n#define min(a, b) +\n#define max(a, b) +\n#include "m.hpp"\n'
    )
    check_syntax(tmp_path / "all.cpp", ("-mavx512bf16", "-mavx512f"), tmp_path)


def test_a_refusal_of_a_step_names_a_node_without_leaving_its_comment(tmp_path: Path) -> None:
    made = model(str)
    turned = Node("Rnn", ("embedded",), ("both\nint pwned;",), made.nodes[1].attributes)
    spec = replace(turned.attributes["spec"], direction="right2left")
    turned = replace(turned, attributes={**turned.attributes, "spec": spec})
    made = replace(made, nodes=(made.nodes[0], turned), outputs=(Value(turned.outputs[0]),)).prune()
    made = replace(made, inputs=made.inputs[:1])
    write_cpp(made, tmp_path, name="m")
    assert "pwned" not in [text for _, text in tokens((tmp_path / "m.hpp").read_text())]
