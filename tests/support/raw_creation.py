"""What oneDNN says to a primitive descriptor, asked for as its guide and specification tell."""

from __future__ import annotations

from typing import Any

from onernn import Cell
from onernn.backend.onednn.library import load_library
from onernn.backend.onednn.memory import _ELTWISE, Descriptor, argument_order
from onernn.backend.onednn.precision import CREATORS

TAGS = {
    "src_layer": "tnc",
    "dst_layer": "tnc",
    "augru_attention": "tnc",
    **dict.fromkeys(("src_iter", "src_iter_c", "dst_iter", "dst_iter_c"), "ldnc"),
    **dict.fromkeys(("weights_layer", "weights_iter", "weights_projection"), "any"),
    **dict.fromkeys(("bias", "weights_peephole"), "ldgo"),
}


def shapes(
    cell: Cell,
    *,
    T: int = 3,
    N: int = 2,
    I: int = 8,  # noqa: E741
    R: int = 8,
    O: int = 8,  # noqa: E741
    L: int = 1,
    direction: str = "left2right",
    projection: int | None = None,
    peephole: bool = False,
) -> dict[str, tuple[int, ...]]:
    """The arguments' shapes as the texts have them."""
    D, G = (2 if direction.startswith("bi") else 1), len(cell.gates)
    width = projection or O
    out = {
        "src_layer": (T, N, I),
        "src_iter": (L, D, N, R),
        "weights_layer": (L, D, I, G, O),
        "weights_iter": (L, D, R, G, O),
        "bias": (L, D, cell.bias_rows, O),
        "dst_layer": (T, N, width * (2 if direction.endswith("concat") else 1)),
        "dst_iter": (L, D, N, width),
    }
    if cell is Cell.LSTM:
        out |= dict.fromkeys(("src_iter_c", "dst_iter_c"), (L, D, N, O))
    if cell.has_attention:
        out["augru_attention"] = (T, N, 1)
    if projection:
        out["weights_projection"] = (L, D, O, projection)
    if peephole:
        out["weights_peephole"] = (L, D, 3, O)
    return out


def answer(
    cell: Cell,
    wanted: dict[str, tuple[int, ...]],
    *,
    kind: str = "forward_inference",
    direction: str = "left2right",
    types: dict[str, str] | None = None,
    tags: dict[str, str] | None = None,
) -> str:
    """ "success", "unimplemented" or "invalid_arguments", for these shapes.

    ``types`` and ``tags`` of single arguments: f32, and those of `TAGS`, by default.
    """
    library = load_library()
    lib, ffi = library.lib, library.ffi
    made = {
        name: Descriptor.from_tag(
            library, dims, (types or {}).get(name, "f32"), ({**TAGS, **(tags or {})})[name]
        )
        for name, dims in wanted.items()
    }
    vanilla = cell in _ELTWISE
    one = "" if direction.startswith("bi") else "unidirectional_"
    found = ffi.new("dnnl_primitive_desc_t *")
    arguments: list[Any] = [
        found,
        library.engine,
        getattr(lib, f"dnnl_{kind}"),
        *([getattr(lib, _ELTWISE[cell])] if vanilla else []),
        getattr(lib, f"dnnl_{one}{direction}"),
        *(made[n].handle if n in made else ffi.NULL for n in argument_order(cell)),
        lib.dnnl_rnn_flags_undef,
        *([0.0, 0.0] if vanilla else []),
        ffi.NULL,
    ]
    status = getattr(lib, f"dnnl_{CREATORS[cell]}_forward_primitive_desc_create")(*arguments)
    names = ("success", "unimplemented", "invalid_arguments")
    if status == lib.dnnl_success:
        lib.dnnl_primitive_desc_destroy(found[0])
    return next(name for name in names if getattr(lib, f"dnnl_{name}") == status)
