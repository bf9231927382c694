"""Small faults put into the package: for each, the tests that should see it do.

`make long` tries a few, `make mutants` (ONERNN_MUTANTS) all of them. Each runs on a copy of
the sources in a process of its own.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.interpreters import run_python
from support.mutants import ALL, Checkout, Mutant

RIGHT = ("layers", "layers_are_right and onednn")

MUTANTS = [
    Mutant(
        "gates in reverse order",
        "src/onernn/backend/onednn/kernels.py",
        "arrays = (layer, weights.iter, bias,",
        "arrays = (layer[..., ::-1, :].copy(), weights.iter, bias,",
        RIGHT,
    ),
    Mutant(
        "no bias",
        "src/onernn/backend/onednn/kernels.py",
        "    if bias is None:  # oneDNN requires a bias",
        "    if True:",
        RIGHT,
    ),
    # From here on where all are asked for.
    Mutant(
        "the state forgotten between segments",
        "src/onernn/backend/onednn/kernels.py",
        'f"{of}src_iter{suffix}": places[:-1]',
        'f"{of}src_iter{suffix}": places[:1] * (len(places) - 1)',
        RIGHT,
    ),
    Mutant(
        "final states in sorted order",
        "src/onernn/backend/layer_walk.py",
        "            _assign(final, np.s_[:, :, share.sentences], ends)\n            return kept\n",
        "            _assign(final, np.s_[...], ends)\n            return kept\n",
        RIGHT,
    ),
    Mutant(
        "u8's tolerance for float32",
        "src/onernn/verification/comparing.py",
        '"f32": Tolerance(1e-6, 1e-5)',
        '"f32": Tolerance(2e-2, 0.0)',
        ("doctor", "a_wrong_number_is_seen"),
    ),
    Mutant(
        "a state that is written while it is read",
        "src/onernn/backend/onednn/kernels.py",
        "turns = [k % 2 for k in",
        "turns = [0 for k in",
        ("wrong_numbers", "overwritten"),
    ),
    Mutant(
        "the layout of a projection that is misread",
        "src/onernn/backend/onednn/kernels.py",
        "plain = plain or bool(reason(",
        "plain = plain or False and bool(reason(",
        ("wrong_numbers", "projection"),
    ),
    Mutant(
        "u8 without its shift",
        "src/onernn/ir/weights.py",
        "UNIT: Final = Scale(127.0, 128.0)",
        "UNIT: Final = Scale(127.0, 0.0)",
        ("wrong_numbers", "negative_states"),
    ),
    Mutant(
        "the library's own scratchpad",
        "src/onernn/backend/onednn/kernels.py",
        "self._attributes = new_attributes(library, own_scratchpad=True)",
        "self._attributes = new_attributes(library, own_scratchpad=False)",
        ("wrong_numbers", "another_thread"),
    ),
    Mutant(
        "u8 where sums of its products saturate",
        "src/onernn/backend/onednn/backend.py",
        "if not reason and not library.sums_u8_exactly:",
        "if False:",
        ("doctor", "saturate"),
    ),
    Mutant(
        "oneDNN's gradients of attention cells",
        "src/onernn/backend/onednn/training.py",
        "    if wrong := reason(GRADIENTS, spec, dtype):",
        "    if wrong := False:",
        ("wrong_numbers", "attention"),
    ),
    Mutant(
        "sentences that end early get a state of another piece",
        "src/onernn/backend/onednn/kernels.py",
        "                end[left:batch] = after[left:batch]\n",
        "                end[left:batch] = first[left:batch]\n",
        RIGHT,
    ),
    Mutant(
        "a bias dropped in fusion",
        "fuse_passes/projections.py",
        "    out[:, :, : spec.gates] += folded\n",
        "",
        ("linear_rnn", ""),
    ),
    Mutant(
        "weights that are not finite",
        "src/onernn/ir/weights.py",
        "        if one.infinite:\n",
        "        if False:\n",
        ("bad_input", "finite"),
    ),
    Mutant(
        "attention under other offsets",
        "src/onernn/backend/arguments.py",
        "        if not np.array_equal(batch.offsets, like.offsets):\n",
        "        if False:\n",
        ("bad_input", "wrong_arguments_of_a_run"),
    ),
    Mutant(
        "NaN lost in a relu",
        "src/onernn/backend/onednn/kernels.py",
        "if identity or pairs or spec.cell is Cell.RNN_RELU:",
        "if identity or pairs:",
        ("bad_input", "not_a_number"),
    ),
    Mutant(
        "infinity multiplied by the identity",
        "src/onernn/backend/onednn/kernels.py",
        "if identity or pairs or",
        "if pairs or",
        ("bad_input", "not_finite_goes"),
    ),
    Mutant(
        "weights packed for every shape",
        "src/onernn/backend/onednn/kernels.py",
        "            return not missing or",
        "            return True or",
        ("threads_and_memory", "budget"),
    ),
    Mutant(
        "a cache without bounds",
        "src/onernn/backend/onednn/kernels.py",
        "if len(self._made) >= self._library.cache_capacity:",
        "if False:",
        ("threads_and_memory", "made_again"),
    ),
]
PLAIN = 2


@pytest.mark.long
def test_the_copy_is_what_runs_and_passes(checkout: Checkout) -> None:
    code = "import onernn.backend.arguments as found; print(found.__file__)"
    environment = os.environ | {"PYTHONPATH": str(checkout.folder / "src")}
    done = run_python("-c", code, env=environment)
    assert done.stdout.startswith(str(checkout.folder))
    for tests in dict.fromkeys(m.tests for m in MUTANTS[: None if ALL else 1]):
        assert checkout.run(tests).returncode == 0


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.what)
def test_every_fault_still_has_its_place(repo: Path, mutant: Mutant) -> None:
    assert (repo / mutant.file).read_text().count(mutant.old) == 1
    assert len([*(repo / "tests").rglob(f"test_{mutant.tests[0]}.py")]) == 1


@pytest.mark.long
@pytest.mark.parametrize(
    "mutant", MUTANTS if ALL else MUTANTS[:PLAIN], ids=lambda mutant: mutant.what
)
def test_the_fault_is_seen(checkout: Checkout, mutant: Mutant) -> None:
    checkout.assert_seen(mutant)
