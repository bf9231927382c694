"""Reading beside a real Paddle: in one process, in both orders of import, to the same numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.interpreters import run_python

BOTH = """
import json, sys, zlib
import numpy as np, numpy.random  # paddle 2.6.2 wants it and zlib to be there before

first, *prefixes = sys.argv[1:]
if first == "onernn":
    from onernn.adapters.paddle.read import read_program
    for prefix in prefixes:
        read_program(prefix)
import paddle
paddle.enable_static()
executor = paddle.static.Executor(paddle.CPUPlace())

def plain(value):
    if isinstance(value, paddle.base.core.BlockDesc):
        return value.id
    return tuple(value) if isinstance(value, list) else value

def slots(names, get):
    return {name: tuple(get(name)) for name in names}

def same_operator(op, theirs):
    return (
        op.type == theirs.type
        and op.inputs == slots(theirs.input_names, theirs.input)
        and op.outputs == slots(theirs.output_names, theirs.output)
        and all(plain(theirs.attr(name)) == value for name, value in op.attributes.items())
    )

def same_array(array, tensor):
    return list(array.shape) == tensor.shape() and array.tobytes() == np.asarray(tensor).tobytes()

def compared(prefix):
    scope = paddle.static.Scope()
    with paddle.static.scope_guard(scope):
        program, *_ = paddle.static.load_inference_model(prefix, executor)
    from onernn.adapters.paddle.read import read_program
    ours = read_program(prefix)
    tensor = paddle.base.core.VarDesc.VarType.LOD_TENSOR
    return {
        "saved": sorted(v.name for v in program.list_vars() if v.persistable and v.type == tensor),
        "parameters": {
            name: same_array(array, scope.find_var(name).get_tensor())
            for name, array in ours.parameters.items()
        },
        "operators": [
            same_operator(*both)
            for both in zip(ours.operators, program.global_block().ops, strict=True)
        ],
    }

print(json.dumps({prefix: compared(prefix) for prefix in prefixes}))
"""


def check(first: str, models: list[Path]) -> None:
    prefixes = [str(model.with_suffix("")) for model in models]
    done = run_python("-c", BOTH, first, *prefixes)
    results = json.loads(done.stdout.splitlines()[-1])
    assert list(results) == prefixes
    assert sum(map(bool, (result["saved"] for result in results.values()))) >= len(prefixes) // 2
    for prefix, result in results.items():
        assert list(result["parameters"]) == result["saved"], prefix
        assert all(result["parameters"].values()), (prefix, result["parameters"])
        assert all(result["operators"]) and result["operators"], (prefix, result["operators"])


@pytest.mark.parametrize("first", ["onernn", "paddle"])
def test_paddle_and_the_reader_agree_in_either_order(data: Path, first: str) -> None:
    models = sorted(data.glob("paddle/*/model.pdmodel"))
    assert len(models) >= 2
    check(first, models)


def test_paddle_and_the_reader_agree_about_every_shared_recording(shared_models: Path) -> None:
    models = sorted(shared_models.glob("paddle/*/model.pdmodel"))
    assert len(models) >= 25
    check("paddle", models)
