"""Finds sentences that a reader has to read twice, by patterns of wording.

`python tools/words.py` counts the hits of each kind, `python tools/words.py K7` prints the hits of
one kind. Sentences come from Markdown, docstrings, comments and the texts of raised errors.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

REPO = Path(__file__).resolve().parents[1]
PACKAGES = ("src/onernn", "adapters", "fuse_passes", "reorders")
PAPERS = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")

_PER = (
    "call|sequence|sentence|step|row|unit|frame|second|batch|word|layer|operator|series|process|parameter|gate"
    "|thread|run|core|turn|node|sum|side|direction|column|file|task|figure|axis|value|weight|element|panel|stream"
    "|token|number|page"
)
_COUNTED = (
    r"one|two|\d[\d.,]*|[num]?s|MB|GB|bytes?|arrays?|files?|rows?|scales?|records?|definition|registers?"
    r"|numbers?|lines?|pages?|blocks?|threads?|tasks?|sums|steps|words?|panels?"
)
KINDS = {
    "K1": ("', too' at the end: also, including", r",\s+too\b"),
    "K2": ("behind, in front of, beside: after, before, with", r"\b(behind|in front of|beside)\b"),
    "K3": (
        "'is no X': is not a X",
        r"\b(is|are|was|were|be|has to be|it is) no"
        r" (?!longer|more|such|other|less|need|doubt|reason|way|point|further|good)[a-z]+"
        r"|\bnone of (its|these|those) \w+ is\b",
    ),
    "K4": ("stands: is, appears", r"\b(stand|stands|stood)\b(?! for\b| out\b)"),
    "K5": (
        "'a' for each: per",
        rf"\b(?:{_COUNTED}) an? (?:{_PER})\b"
        r"(?! (?:of|that|which|is|has|had|or|may|takes|reads|makes|gives|goes|with)\b)",
    ),
    "K6": (
        "least, most as nouns: minimum, maximum",
        r"\bthe (least|most) (?!of all|recent|likely|common|useful|harm|harmful)(\w+)",
    ),
    "K7": (
        "'where' as a condition: if, when",
        r"(?:(?<=[,;] )|(?<=\S ))\bwhere (it|they|there|that|this|these|those|a|an|the|no|none|all"
        r"|some|one|only|any|both|its|their|nothing|something|he|neither"
        r"|[a-z]+ (?:is|are|has|have|was|were|does|do|can|cannot|may|needs?|asks?|fits?))\b",
    ),
    "K8": (
        "'but' as an exception: except",
        r"\b(all|any|every|each|nothing|none|no|only|of all \w+|others?) but\b"
        r"|, but (those|for|the|that|what)\b(?! \w+ (is|are|was|has|have|do|does)\b)",
    ),
    "K9": ("gives: returns, produces", r"\b(gives?|gave)\b"),
    "K10": (
        "a pronoun without a noun before it",
        r"^(Those|That|These|Its|Their|Theirs|Them|They|What)\b",
    ),
    "K10b": ("that of, those of: repeat the noun", r"\b(that|those) of\b"),
    "K11": (
        "'as' for in the way that",
        r"\bas (for|of|if by|by) `"
        r"|, as (it|they|the|a|an|its|their|these|those|MXNet|Paddle|PyTorch|ONNX|Keras|oneDNN"
        r"|NumPy|what|every|each|in|of|no) ",
    ),
    "K12": (
        "metaphors: use the field's term",
        r"\bthe house\b|\b(a|one|this|each|other|another|the) rooms?\b(?! for)|\bfaces?\b|\broof\b"
        r"|\bwish(es)?\b|\bmend(ed)?\b|\bdies of\b|\bpeers?\b",
    ),
    "K13": (
        "numbers, halves, bytes: values, float16, int8",
        r"\bwhole numbers?\b|\bhalves\b|\bin bytes\b|\bnumbers of \d+ bits"
        r"|\bin(to)? narrow numbers|\bbytes at the\b|\bthe numbers\b"
        r"|\bother numbers\b|\bsame numbers\b",
    ),
    "K14": ("sentence, word: sequence, step", r"\b(sentences?|words?)\b"),
    "K15": (
        "ours, here: onernn",
        r"\bours\b"
        r"|\b(?:faster|computed|not|read|supported|used|served|run|runs|taken|options|effect"
        r"|none) here\b",
    ),
    "K16": ("shall: must, may", r"\bshall\b"),
    "K17": (
        "other, another: different",
        r"\b(gets?|gives?|gave|has|have|had|with|compute[sd]?|is|are) (another|other)"
        r" (numbers|values|results|meaning|one|bits|generator|shape|order|\w+)\b(?! than)"
        r"|\bother (numbers|values|bits|results)\b",
    ),
    "K18": (
        "a participle at the start without its subject",
        r"^(Killed|Printed|Capped|Measured|Trained|Pickled|Unrolled|Compared|Read|Written|Run|Called|Loaded|Made|Found"
        r"|Without) [^,]{0,60}, (it|the same|the|they)\b|^(Printed|Pickled) it\b",
    ),
    "K19": (
        "no verb",
        r"^(?!.*\b(is|are|was|were|be|has|have|had|do|does|did|can|cannot|may|must|will|gets?|gives?|takes?|runs?|makes?"
        r"|needs?|reads?|writes?|comes?|goes|raises?|stays?|becomes?|says?|holds?|keeps?|counts?|returns?|\w+ed|\w+s)\b)"
        r"[A-Z`][^.]{15,}\.$",
    ),
    "K20": (
        "three relative clauses in one sentence",
        r"(\b(that|which|whose|where|what|who)\b.*){3,}",
    ),
}
"""The kinds of wording: what to write instead, and a pattern of the words to avoid."""


class Sentence(NamedTuple):
    file: str
    kind: str
    text: str


def split_sentences(text: str) -> list[str]:
    """Returns the sentences of a paragraph that have at least five words."""
    parts = re.split(
        r"(?<=[.!?])[\"')*]*\s+(?=[`*\"'(A-Z]|onernn\b)", re.sub(r"\s+", " ", text).strip()
    )
    whole: list[str] = []
    for part in parts:
        if whole and re.search(r"\b(e\.g|i\.e|cf|vs|etc)\.$", whole[-1]):
            whole[-1] += f" {part}"
        else:
            whole.append(part)
    return [each for each in whole if _count_words(each) >= 5 and not each.startswith("namespace ")]


def _count_words(sentence: str) -> int:
    bare = re.sub(r"`+[^`]*`+", " ", sentence) if sentence.count("`") > 1 else sentence
    return len(re.findall(r"[A-Za-z][A-Za-z']*", bare))


def markdown_sentences(text: str) -> Iterator[tuple[str, str]]:
    """Yields (kind, sentence) for each sentence of a page outside of code blocks."""
    text = re.sub(r"^(```|~~~).*?^\1\s*$|<!--.*?-->", "", text, flags=re.S | re.M)
    text = re.sub(r"^\([\w-]+\)=$", "", text, flags=re.M)
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    paragraph: list[str] = []
    for line in map(str.strip, [*text.splitlines(), ""]):
        starts = re.match(r"([-*]|\d+\.)\s+", line)
        if not line or starts or line[0] in "#<|":
            yield from (("prose", each) for each in split_sentences(" ".join(paragraph)))
            paragraph = []
        if line.startswith("|") and not re.fullmatch(r"[|\s:-]+", line):
            for cell in re.split(r"(?<!\\)\|", line.strip("|")):
                yield from (("cell", each) for each in split_sentences(cell))
        elif line and line[0] not in "#<|":
            paragraph.append(line[starts.end() if starts else 0 :].removeprefix(": "))


def _literal(node: ast.AST) -> str | None:
    """Returns the text of a string expression, with its values in braces."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(
                str(each.value)
                if isinstance(each, ast.Constant)
                else "{" + ast.unparse(getattr(each, "value", each))[:40] + "}"
                for each in values
            )
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            sides = _literal(left), _literal(right)
            return "".join(each or "{...}" for each in sides) if any(sides) else None
    return None


def python_sentences(text: str) -> Iterator[tuple[str, str]]:
    """Yields (kind, sentence) for each sentence in a module's docstrings, errors and comments."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, documented) and (doc := ast.get_docstring(node)):
            doc = re.sub(r"^=+[ =]*$.*?^=+[ =]*$", "", doc, flags=re.S | re.M)
            for paragraph in re.split(r"\n\s*\n", doc):
                yield from (("docstring", each) for each in split_sentences(paragraph))
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            texts = [message for each in node.exc.args if (message := _literal(each))]
            if texts and len(re.findall(r"[A-Za-z']+", texts[0])) >= 3:
                yield "message", re.sub(r"\s+", " ", texts[0])
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    comments = [
        (token.start[0], token.string.lstrip("#!: ").strip())
        for token in tokens
        if token.type == tokenize.COMMENT
    ]
    tools = ("type:", "noqa", "pragma", "mypy", "ruff")
    yield from _comment_sentences([each for each in comments if not each[1].startswith(tools)])


def cpp_sentences(text: str) -> Iterator[tuple[str, str]]:
    """Yields (kind, sentence) for each sentence in the line comments of a C++ file."""
    found = (
        (line, re.search(r"(?<![:\"])//+!?\s?(.*)$", source))
        for line, source in enumerate(text.splitlines())
    )
    yield from _comment_sentences([(line, match[1].strip()) for line, match in found if match])


def _comment_sentences(comments: list[tuple[int, str]]) -> Iterator[tuple[str, str]]:
    """Yields the sentences of comments, given as (line, text). The comments of consecutive lines
    are one paragraph.
    """
    paragraph: list[str] = []
    following = [line for line, _ in comments[1:]]
    for (line, text), after in zip_longest(comments, following):
        paragraph.append(text)
        if after != line + 1:
            yield from (("comment", each) for each in split_sentences(" ".join(paragraph)))
            paragraph = []


def all_sentences(repo: Path = REPO) -> list[Sentence]:
    """Returns every sentence of the documents and the package."""
    pages = [repo / "README.md", *sorted((repo / "docs").rglob("*.md"))]
    pages = [page for page in pages if "generated" not in page.parts]
    pages += [repo / each for each in PAPERS] + sorted((repo / "design").glob("*.md"))
    pages += sorted((repo / "examples").glob("*/README.md"))
    readers = {".py": python_sentences, ".hpp": cpp_sentences, ".cpp": cpp_sentences}
    readers |= {".h": cpp_sentences}
    code = [
        path
        for package in PACKAGES
        for path in sorted((repo / package).rglob("*"))
        if path.suffix in readers and not any(p.is_symlink() for p in (path, *path.parents))
    ]
    sources = [(page, markdown_sentences) for page in pages]
    sources += [(path, readers[path.suffix]) for path in code]
    return [
        Sentence(str(path.relative_to(repo)), *each)
        for path, read in sources
        for each in read(path.read_text(encoding="utf-8"))
    ]


def find_kinds(sentence: str) -> list[str]:
    """Returns the kinds of wording that a sentence contains."""
    bare = re.sub(r"`[^`]*`", "`x`", sentence)
    return [
        kind
        for kind, (_, pattern) in KINDS.items()
        if re.search(pattern, sentence if kind == "K11" else bare)
    ]


def main(asked: str | None = None) -> None:
    """Prints the number of hits of each kind, or if ``asked`` names a kind, each hit of it."""
    sentences = all_sentences()
    hits = [(kind, each) for each in sentences for kind in find_kinds(each.text)]
    if asked:
        for kind, (file, _, text) in hits:
            if kind == asked:
                print(f"{file}: {text}")
        return
    counts = Counter(kind for kind, _ in hits)
    for kind, (advice, _) in KINDS.items():
        print(f"{kind:5}{counts[kind]:5}  {advice}")
    print(f"{len(hits)} hits in {len(sentences)} sentences")


if __name__ == "__main__":
    main(*sys.argv[1:2])
