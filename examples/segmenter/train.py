"""Trains the segmenter in PaddlePaddle 2.6.2: ``python examples/segmenter/train.py``.

A tagger of the shape of Baidu's LAC, made of the same operators: an embedding, two bidirectional
layers of fc + gru, an fc and a CRF. What comes out lies beside this file:

    model.pdmodel, model.pdiparams   letters -> a score for each letter and tag, the best tags
    heldout.npz                      a recording: what Paddle answers on lines never trained on
    training.json                    how good, on what, how long
"""

import json
import platform
import time
import zlib  # noqa: F401  (a zlib or numpy.random that is loaded after Paddle 2.6.2 crashes)
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
import numpy.random  # noqa: F401
import paddle
from paddle import static
from paddle.optimizer.lr import CosineAnnealingDecay, LRScheduler
from tags import LETTERS, TAGS, Ids, letter_ids, word_tags, words_of
from text import is_held_out, lines

HERE = Path(__file__).resolve().parent
DEMO = "thequickbrownfoxjumpsoverthelazydog"

SEED = 7
EMBEDDING, HIDDEN = 32, 96
EPOCHS, BATCH, RATE, DROPOUT = 4, 32, 4e-3, 0.2
RECORDED_LINES = 300

CPU = paddle.CPUPlace()
LoDTensor = paddle.base.core.LoDTensor
Variable = static.Variable
Words = list[str]


# The network, in the operators that Paddle's own LAC is saved in.


def add(kind: str, inputs: dict, *outputs: str, dtype: str = "float32", **attrs) -> Variable:
    """The first output of a new operator; the others are there because Paddle wants them."""
    block = static.default_main_program().global_block()
    made = {name: block.create_var(dtype=dtype, stop_gradient=False) for name in outputs}
    block.append_op(type=kind, inputs=inputs, outputs=made, attrs=attrs)
    return made[outputs[0]]


def parameter(name: str, *shape: int, bound: float) -> Variable:
    """Uniform numbers within the bound. Programs share the parameters of one name."""
    uniform = paddle.nn.initializer.Uniform(-bound, bound)
    return static.create_parameter(list(shape), "float32", name, default_initializer=uniform)


def fc(x: Variable, name: str, size: int, width: int) -> Variable:
    weight = parameter(f"{name}.w", size, width, bound=(3 / size) ** 0.5)
    product = add("mul", {"X": x, "Y": weight}, "Out", x_num_col_dims=1, y_num_col_dims=1)
    bias = parameter(f"{name}.b", width, bound=0.0)
    return add("elementwise_add", {"X": product, "Y": bias}, "Out", axis=1)


def gru(x: Variable, name: str, size: int, *, is_reverse: bool) -> Variable:
    inputs = {
        "Input": fc(x, f"{name}.fc", size, 3 * HIDDEN),
        "Weight": parameter(f"{name}.gru.w", HIDDEN, 3 * HIDDEN, bound=HIDDEN**-0.5),
        "Bias": parameter(f"{name}.gru.b", 1, 3 * HIDDEN, bound=0.0),
    }
    outputs = "Hidden", "BatchGate", "BatchResetHiddenPrev", "BatchHidden"
    attrs = {"origin_mode": False, "activation": "tanh", "gate_activation": "sigmoid"}
    return add("gru", inputs, *outputs, is_reverse=is_reverse, **attrs)


def emission(letters: Variable, dropout: float) -> Variable:
    """A score for each letter and tag: (W, 4)."""
    table = parameter("embedding.w", len(LETTERS), EMBEDDING, bound=1.0)
    x = add("lookup_table_v2", {"Ids": letters, "W": table}, "Out", padding_idx=-1)
    size = EMBEDDING
    for layer in ("layer0", "layer1"):
        forward = gru(x, f"{layer}.forward", size, is_reverse=False)
        backward = gru(x, f"{layer}.backward", size, is_reverse=True)
        x = add("concat", {"X": [forward, backward]}, "Out", axis=1)
        size = 2 * HIDDEN
        if dropout:
            x = paddle.nn.functional.dropout(x, dropout)
    return fc(x, "emission", size, len(TAGS))


def transition() -> Variable:
    """The CRF's scores: two rows to start and to stop with, then from each tag to each."""
    return parameter("transition.w", len(TAGS) + 2, len(TAGS), bound=0.1)


def training_program(steps: int) -> tuple[static.Program, static.Program, Variable, LRScheduler]:
    """One step of Adam, the setting of all parameters before the first, the loss, the rate."""
    program, startup = static.Program(), static.Program()
    program.random_seed = startup.random_seed = SEED
    with static.program_guard(program, startup):
        letters = static.data("letters", [-1], "int64", lod_level=1)
        tags = static.data("tags", [-1, 1], "int64", lod_level=1)
        inputs = {"Emission": emission(letters, DROPOUT), "Transition": transition(), "Label": tags}
        outputs = "LogLikelihood", "Alpha", "EmissionExps", "TransitionExps"
        loss = paddle.mean(add("linear_chain_crf", inputs, *outputs))  # Paddle negates it already
        rate = CosineAnnealingDecay(RATE, steps)
        clip = paddle.nn.ClipGradByGlobalNorm(5.0)
        paddle.optimizer.Adam(rate, grad_clip=clip).minimize(loss)
    return program, startup, loss, rate


def save_tagger(executor: static.Executor, prefix: Path) -> None:
    """The model files, of a program that has never had anything to do with training."""
    program = static.Program()
    with static.program_guard(program, static.Program()):
        letters = static.data("letters", [-1], "int64", lod_level=1)
        scores = emission(letters, 0.0)
        inputs = {"Emission": scores, "Transition": transition()}
        path = add("crf_decoding", inputs, "ViterbiPath", dtype="int64")
    # clip_extra would cut off outputs that gru cannot do without.
    kept = {"program": program, "clip_extra": False}
    static.save_inference_model(str(prefix), [letters], [scores, path], executor, **kept)
    # Every operator remembers the lines of Python that made it, with the paths of this machine.
    file = prefix.with_suffix(".pdmodel")
    saved = paddle.base.core.ProgramDesc(file.read_bytes())
    block = saved.block(0)
    for i in range(block.op_size()):
        block.op(i).remove_attr("op_callstack")
    file.write_bytes(saved.serialize_to_string())


# The lines, and how they are fed.


class Exchange:
    """Lines in many of which some words gave way to other words of the training lines.

    So the model does not learn by heart what follows what, and meets rare words more often.
    """

    def __init__(self, texts: Iterable[Words]) -> None:
        counts = Counter(word for words in texts for word in words if len(word) >= 3)
        self.vocabulary = sorted(counts)
        weights = np.array([counts[word] for word in self.vocabulary]) ** 0.3
        self.cumulative = np.cumsum(weights / weights.sum())

    def __call__(self, words: Words, rng: np.random.Generator) -> Words:
        if rng.random() < 0.5:
            return words
        drawn = np.searchsorted(self.cumulative[:-1], rng.random(len(words)))
        exchanged = rng.random(len(words)) < 0.4
        triples = zip(words, drawn, exchanged, strict=True)
        return [self.vocabulary[i] if other else word for word, i, other in triples]


def batches(texts: list[Words], rng: np.random.Generator) -> Iterator[list[Words]]:
    """All lines once, in random order."""
    order = rng.permutation(len(texts)).tolist()
    for start in range(0, len(order), BATCH):
        yield [texts[i] for i in order[start : start + BATCH]]


def lod_tensor(rows: Iterable[Ids]) -> LoDTensor:
    rows = list(rows)
    tensor = LoDTensor()
    tensor.set(np.concatenate(rows), CPU)
    tensor.set_lod([list(accumulate(map(len, rows), initial=0))])
    return tensor


def letters_tensor(texts: Iterable[Words]) -> LoDTensor:
    return lod_tensor(letter_ids("".join(words)) for words in texts)


# Training, and what is measured on the files it leaves.


def train(executor: static.Executor, texts: list[Words]) -> None:
    """Parameters in the global scope, under the names that the tagger will look for."""
    steps = EPOCHS * -(-len(texts) // BATCH)
    program, startup, loss, rate = training_program(steps)
    executor.run(startup)
    rng = np.random.default_rng(SEED)
    exchange = Exchange(texts)
    for epoch in range(EPOCHS):
        losses = []
        for batch in batches([exchange(words, rng) for words in texts], rng):
            tags = lod_tensor(word_tags(words)[:, None] for words in batch)
            feed = {"letters": letters_tensor(batch), "tags": tags}
            losses.append(executor.run(program, feed=feed, fetch_list=[loss])[0])
            rate.step()
        print(f"epoch {epoch + 1} of {EPOCHS}: loss {np.mean(losses):.3f}", flush=True)


class Tagger:
    """The saved model, in Paddle."""

    def __init__(self, executor: static.Executor, prefix: Path) -> None:
        self.executor = executor
        self.program, _, self.fetches = static.load_inference_model(str(prefix), executor)

    def run(self, letters: LoDTensor) -> list[LoDTensor]:
        feed = {"letters": letters}
        return self.executor.run(self.program, feed, self.fetches, return_numpy=False)

    def segment(self, texts: list[str]) -> list[Words]:
        path = self.run(lod_tensor(map(letter_ids, texts)))[1]
        tags = np.split(np.array(path), path.lod()[0][1:-1])
        return [words_of(text, row) for text, row in zip(texts, tags, strict=True)]


def word_f1(expected: Iterable[Words], got: Iterable[Words]) -> float:
    """Harmonic mean of precision and recall; a word is right if both its ends are."""

    def spans(texts: Iterable[Words]) -> set[tuple[int, int, int]]:
        ends = (accumulate(map(len, words), initial=0) for words in texts)
        return {(line, *span) for line, cuts in enumerate(ends) for span in pairwise(cuts)}

    there, found = spans(expected), spans(got)
    return 2 * len(there & found) / (len(there) + len(found))


def record(tagger: Tagger, texts: list[Words], file: Path) -> None:
    """A recording of one batch, and beside it the right `tags`, which cut it into the words."""
    letters = letters_tensor(texts)
    arrays = {"in__letters": np.array(letters), "lod__letters": np.array(letters.lod()[0])}
    for i, out in enumerate(tagger.run(letters)):
        arrays |= {f"out__{i}": np.array(out), f"outlod__{i}": np.array(out.lod()[0])}
    np.savez_compressed(file, **arrays, tags=np.concatenate([word_tags(words) for words in texts]))


def main() -> None:
    paddle.enable_static()
    paddle.seed(SEED)
    executor = static.Executor(CPU)
    everything = lines()
    training = [line.split() for line in everything if not is_held_out(line)]
    held_out = [line.split() for line in everything if is_held_out(line)]

    start = time.perf_counter(), time.process_time()
    train(executor, training)
    seconds, cpu_seconds = time.perf_counter() - start[0], time.process_time() - start[1]

    save_tagger(executor, HERE / "model")
    tagger = Tagger(executor, HERE / "model")
    f1 = word_f1(held_out, tagger.segment(["".join(words) for words in held_out]))
    sample = held_out[:: len(held_out) // RECORDED_LINES][:RECORDED_LINES]
    record(tagger, sample, HERE / "heldout.npz")
    facts = {
        "paddle": paddle.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "training_lines": len(training),
        "heldout_lines": len(held_out),
        "heldout_word_f1": round(f1, 4),
        "seconds": round(seconds),
        "cpu_seconds": round(cpu_seconds),
    }
    (HERE / "training.json").write_text(json.dumps(facts, indent=2) + "\n")
    print(f"word F1 on {len(held_out)} held-out lines: {f1:.4f}, after {seconds:.0f} s of training")
    print(f"{DEMO} -> {' '.join(tagger.segment([DEMO])[0])}")


if __name__ == "__main__":
    main()
