"""PyTorch: sequences packed before the calls, sequences packed in each call, and padded batches.

u8 is dynamic quantization: int8 products, and all else in float32. Weights and tensors are
converted to the dtype before times are measured.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.tasks import Array, LeftOut, Numbers, Prepared, Takes, Task

PACKAGES = ("torch",)
MODES = {
    "packed": Takes("ragged training", "f32 bf16 u8", "lbr_gru lstm"),
    "lod": Takes("ragged", "f32 bf16 u8", "lbr_gru lstm"),
    "padded": Takes("ragged dense stream training", "f32 bf16 u8", "lbr_gru lstm"),
}
ORDER = {"lbr_gru": (1, 0, 2), "lstm": (0, 1, 2, 3)}  # r z n; i f g o
PARAMETERS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


def versions() -> dict[str, str]:
    import torch

    return {"torch": torch.__version__}


def prepare(task: Task, mode: str) -> Prepared:
    import torch

    torch.set_num_threads(task.threads)
    numbers = Numbers(task)
    network = _network(task, numbers)
    dtype = torch.bfloat16 if task.dtype == "bf16" else torch.float32
    if task.kind == "training":
        return _training(task, numbers, network, dtype, mode == "packed")
    made = {"packed": _packed, "lod": _lod, "padded": _padded}[mode]
    call, read = made(task, numbers, network, dtype)
    return Prepared(torch.inference_mode()(call), lambda y: read(y).float().numpy())


def _network(task: Task, numbers: Numbers) -> Any:
    import torch

    kind = torch.nn.LSTM if task.cell == "lstm" else torch.nn.GRU
    sizes = (task.input_size, task.hidden_size, task.layers)
    network = kind(*sizes, bidirectional=task.bidirectional)
    with torch.no_grad():
        for layer, direction, rows in numbers.all_rows(ORDER[task.cell]):
            place = f"l{layer}{'_reverse' * direction}"
            for name, array in zip(PARAMETERS, rows, strict=True):
                getattr(network, f"{name}_{place}").copy_(torch.from_numpy(array))
    if task.dtype == "bf16":
        return network.bfloat16()
    if task.dtype == "u8":
        inside = torch.nn.Sequential(network)  # quantize_dynamic replaces submodules
        return torch.ao.quantization.quantize_dynamic(inside, {kind}, dtype=torch.qint8)[0]
    return network


Calls = tuple[Callable[[], Any], Callable[[Any], Any]]


def _packed(task: Task, numbers: Numbers, network: Any, dtype: Any) -> Calls:
    import torch
    from torch.nn.utils.rnn import pack_sequence, unpack_sequence

    sentences = [torch.from_numpy(s).to(dtype) for s in numbers.sentences]
    x = pack_sequence(sentences, enforce_sorted=False)
    return lambda: network(x)[0], lambda y: torch.cat(unpack_sequence(y))


def _lod(task: Task, numbers: Numbers, network: Any, dtype: Any) -> Calls:
    import torch
    from torch.nn.utils.rnn import pack_sequence, unpack_sequence

    words, lengths = torch.from_numpy(numbers.words).to(dtype), list(task.lengths)

    def call() -> Any:
        x = pack_sequence(torch.split(words, lengths), enforce_sorted=False)
        return torch.cat(unpack_sequence(network(x)[0]))

    return call, lambda y: y


def _padded(task: Task, numbers: Numbers, network: Any, dtype: Any) -> Calls:
    import torch

    if task.kind == "ragged" and task.bidirectional:
        raise LeftOut("without lengths the backward direction would start in the padding")
    x = torch.from_numpy(numbers.padded).to(dtype)

    def words(y: Any) -> Any:
        return torch.from_numpy(numbers.unpadded(y.float().numpy()))

    if task.kind != "stream":
        return lambda: network(x)[0], words
    steps = list(x.split(1))

    def stream() -> Any:
        state, ys = None, []
        for step in steps:
            y, state = network(step, state)
            ys.append(y)
        return torch.cat(ys)

    return stream, words


def _training(task: Task, numbers: Numbers, network: Any, dtype: Any, packed: bool) -> Prepared:
    import torch
    from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

    x = torch.from_numpy(numbers.padded).to(dtype)
    dy = torch.from_numpy(numbers.padded_dy).to(dtype)
    framed, padded = lambda a: a, lambda a: a
    if packed:
        if not task.ragged:
            raise LeftOut("a batch of equal lengths needs no packing")
        (x, *places), (dy, *_) = (
            pack_padded_sequence(a, task.lengths, enforce_sorted=False) for a in (x, dy)
        )
        framed = lambda a: PackedSequence(a, *places)  # noqa: E731
        padded = lambda a: pad_packed_sequence(framed(a))[0]  # noqa: E731
    x.requires_grad_()
    network.train()

    def call() -> None:
        network.zero_grad()
        x.grad = None
        y = network(framed(x))[0]
        (y.data if packed else y).backward(dy)

    def read(_: Any) -> Array:
        def rows(layer: int, direction: int) -> list[Array]:
            place = f"l{layer}{'_reverse' * direction}"
            return [getattr(network, f"{n}_{place}").grad.float().numpy() for n in PARAMETERS]

        named = {"words": numbers.unpadded(padded(x.grad).float().numpy())}
        return numbers.slopes(named | numbers.from_rows(rows, ORDER[task.cell]))

    return Prepared(call, read)
