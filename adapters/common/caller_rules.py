"""Rules that the caller of `load` passes for operators that onernn does not know.

A rule is a function that computes an operator from canonical operators. A rule's signature is like
the signatures of onernn's own rules; see design/0097 and `signatures`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from onernn.adapters.common.adapter import StrPath
from onernn.adapters.common.lowering import GraphBuilder, NativeOperator, Results
from onernn.adapters.common.signatures import Signature, Tensor, refuse
from onernn.ir.errors import UnsupportedError
from onernn.ir.records import NamedTuple


class Declared(Protocol):
    """A value as a model declares it; see `Value`."""

    @property
    def dtype(self) -> str | None: ...
    @property
    def shape(self) -> tuple[int | None, ...] | None: ...


class Replacing(NamedTuple):
    """Marks a rule that replaces onernn's own rule for an operator. Without this mark, onernn
    refuses a rule for an operator that it knows.

    >>> x, y = onernn.Value("x", "float32", (None, 2)), onernn.Value("y")
    >>> relu = onernn.Node("Relu", ("x",), ("y",))
    >>> model = onernn.Graph("relu", (x,), (y,), (relu,), {})
    >>> onernn.convert(model, "relu.onnx")
    >>> rule = onernn.Replacing(lambda X: X.Max(0.0))
    >>> [node.op for node in onernn.load("relu.onnx", rules={"Relu": rule}).nodes]
    ['Max', 'Identity']
    """

    rule: Callable[..., Any]


class _RuleError(UnsupportedError):
    """An error whose text already names the rule."""


class CallerRule:
    """A caller's rule for all operators of one name. Every error in the rule becomes an
    `UnsupportedError` that names the rule, its file and line.
    """

    def __init__(
        self, name: str, rule: Any, signature: type[Signature], tensor: type[Tensor]
    ) -> None:
        self.name, self.replaces = name, isinstance(rule, Replacing)
        function = rule.rule if isinstance(rule, Replacing) else rule
        if not callable(function):
            refuse(f"rule {name!r}: expected a function, got {function!r:.100}")
        code = getattr(inspect.unwrap(function), "__code__", None)
        self._file: str = code.co_filename if code else ""
        self._line: int = code.co_firstlineno if code else 0
        with self.naming():
            self.signature = signature(function, {}, tensor)
            self.slots, self.rest = self.signature.slots, self.signature.rest
        unfit = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_KEYWORD)
        for each in self.signature.parameters:
            if each.kind in unfit:
                expected = "expected the name of an input, or after * the name of an attribute"
                refuse(f"rule {name!r}: parameter {each}: {expected}")

    @contextmanager
    def naming(self) -> Iterator[None]:
        """Turns every exception inside into an `UnsupportedError` that names the rule."""
        try:
            yield
        except _RuleError:
            raise
        except Exception as error:  # a caller's code may raise anything
            import traceback  # slow, and rarely needed

            frames = traceback.extract_tb(error.__traceback__)
            lines = [frame.lineno for frame in frames if frame.filename == self._file]
            place = f" ({self._file}:{lines[-1] if lines else self._line})" if self._file else ""
            kind = "" if isinstance(error, UnsupportedError) else f"{type(error).__name__}: "
            raise _RuleError(f"rule {self.name!r}{place}: {kind}{error}") from error

    def __call__(self, op: NativeOperator) -> Results:
        """Returns the names of the values that the rule returns."""
        return self.signature.name_results(op, *self.call(op))

    def call(self, op: NativeOperator) -> tuple[list[Any], Any]:
        """Returns the inputs of the rule, and its result: one `Tensor` or a tuple of them. Raises
        `UnsupportedError` that names the rule if the rule raises an error, does not read an input
        or an attribute, or does not return as many tensors as the operator has outputs.
        """
        with self.naming():
            try:
                inputs, attributes = self.signature.bind(op)
            except UnsupportedError as error:
                refuse(f"{error}{_describe(op)}")
            before = len(op.builder.nodes)
            results = self.signature.rule(*inputs, **attributes)
            if isinstance(results, list):
                results = tuple(results)
            self._check(op, results)
            _check_types(op.builder, before)
            op.check_read()
        return inputs, results

    def _check(self, op: NativeOperator, results: Any) -> None:
        each_by_slot = results if isinstance(results, Mapping) else {}
        several = [*each_by_slot.values()] or (results if isinstance(results, tuple) else [results])
        for each in several:
            is_own = isinstance(each, Tensor) and each.op.builder is op.builder
            if not is_own and not (each is None and len(several) > 1):
                refuse(f"it returned {each!r:.100}, expected a tensor computed from its inputs")
        if each_by_slot:
            known = [*map(str, op.outputs)]
            if unknown := [slot for slot in each_by_slot if slot not in known]:
                refuse(f"it returned outputs {unknown}, expected some of {', '.join(known)}")
        elif problem := op.miscounted(len(several)):
            refuse(f"it returned {len(several)} outputs, {problem}")


def _check_types(builder: GraphBuilder, before: int) -> None:
    """Raises `UnsupportedError` if a node's inputs have dtypes or shapes that do not fit each
    other, such as float32 and int64. The nodes from number ``before`` on are checked.
    """
    for node in builder.nodes[before:]:
        types = [builder.type_of(name) for name in node.inputs if name]
        typed = all(each.dtype is not None and each.shape is not None for each in types)
        if typed and any(builder.type_of(name).dtype is None for name in node.outputs):
            mixed = len({each.dtype for each in types}) > 1
            advice = "; x + 1 and x.Add(1.0) have the dtype of x, x.Add(1) adds an int64"
            listed = ", ".join(map(str, types))
            refuse(
                f"{node.op} of {listed}: expected dtypes and shapes that fit each"
                f" other{advice if mixed else ''}"
            )


def check_declared(builder: GraphBuilder, value: str, declared: Declared | None) -> None:
    """Raises `UnsupportedError` if the model declares a different dtype or shape for a rule's
    result.
    """
    if declared is None or not value:
        return
    known, dtype, shape = builder.type_of(value), declared.dtype, declared.shape
    dtype = "float32" if dtype == "bfloat16" else dtype
    counts = known.counts if known.shape is not None else None
    same = shape is None or counts is None or len(shape) == len(counts)
    if same and shape is not None and counts is not None:
        same = all(None in pair or len({*pair}) == 1 for pair in zip(shape, counts, strict=True))
    if not same or None not in (dtype, known.dtype) and dtype != known.dtype:
        refuse(f"it returned {known}, expected the declared {dtype or 'dtype'}{shape or ''}")


def _describe(op: NativeOperator) -> str:
    listed = {"inputs": op.inputs, "attributes": op.attributes}
    parts = [f"{kind} {', '.join(map(str, names))}" for kind, names in listed.items() if names]
    return f"; the operator has {' and '.join(parts)}" if parts else ""


def read_callers(
    rules: Mapping[str, Any] | None,
    signature: type[Signature],
    tensor: type[Tensor],
) -> dict[str, CallerRule]:
    """Returns a caller's rules by the names of operators.

    ``signature``, ``tensor``: the framework's classes for the signatures and the inputs of rules.

    Raises `UnsupportedError` if ``rules`` is not a dict of functions by name, or if a parameter
    names neither an input nor an attribute.
    """
    if rules is None:
        return {}
    if not isinstance(rules, Mapping) or not all(isinstance(name, str) for name in rules):
        refuse(f"rules: expected a dict of functions by the names of operators, got {rules!r:.100}")
    return {name: CallerRule(name, rule, signature, tensor) for name, rule in rules.items()}


def find_caller(
    rules: Mapping[str, CallerRule], names: Iterable[str], is_known: bool
) -> CallerRule | None:
    """Returns the caller's rule for an operator that may have several names: the rule of the first
    name with a rule.

    Raises `UnsupportedError` if onernn knows the operator and the rule is not `Replacing`.
    """
    result = next((rules[name] for name in names if name in rules), None) if rules else None
    if result and is_known and not result.replaces:
        refuse(
            f"rule {result.name!r}: onernn knows this operator; leave the rule out, or pass"
            f" onernn.Replacing(rule) to use it in place of onernn's own"
        )
    return result


def read_rules(path: StrPath) -> Mapping[str, Any]:
    """Runs a Python file and returns its dict ``RULES``.

    Raises `UnsupportedError` if the file does not exist, raises an error, or has no such dict.
    """
    import runpy  # rarely needed

    if not Path(path).is_file():
        refuse(f"{path}: no such file; expected a Python file with a dict RULES")
    try:
        rules = runpy.run_path(str(path)).get("RULES")
    except (Exception, SystemExit) as error:  # a caller's code may raise anything
        raise UnsupportedError(f"{path}: {type(error).__name__}: {error}") from error
    if isinstance(rules, Mapping):
        return rules
    raise UnsupportedError(
        f"{path}: expected a dict RULES of functions by the names of operators, got {rules!r:.100}"
    )
