"""A scorer for Ray Data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onernn.batch.rejecting import REJECTED, told
from onernn.batch.scorer import Scorer
from onernn.core.graph import Graph
from onernn.runtime.session import Session

if TYPE_CHECKING:
    import pyarrow as pa
    import ray


class RayScorer:
    """A callable class for ``ray.data.Dataset.map_batches``: each actor scores batches with it.

    ```python
    model = ray.put(onernn.Session("model.onnx", threads=1))
    scored = dataset.map_batches(
        RayScorer,
        fn_constructor_args=(model,),
        fn_constructor_kwargs={"inputs": {"words": "tokens"}},
        batch_format="pyarrow",
        batch_size=4096,
        compute=ray.data.ActorPoolStrategy(min_size=1, max_size=8),
    )
    ```

    ``model``: a reference of Ray's to a session, whose weights the actors of a node read where the
    object store has them; or what `Scorer` takes. The other arguments are those of `Scorer`.
    Batches come back with the outputs' columns, and the column ``rejected``: why a row could not be
    scored, null for all others; ``strict=True`` raises instead. A model that is no session runs
    with one thread unless ``threads`` is told, as an actor has one CPU of Ray's.
    """

    def __init__(
        self,
        model: ray.ObjectRef[Session] | Session | Graph | str | Path,
        inputs: Mapping[str, str] | None = None,
        outputs: Mapping[str, str] | None = None,
        *,
        rejected: str = REJECTED,
        **options: Any,
    ) -> None:
        import ray

        found: Any = ray.get(model) if isinstance(model, ray.ObjectRef) else model
        if not isinstance(found, Session):
            options = {"threads": 1, **options}
        self._scorer, self._rejected = Scorer(found, inputs, outputs, **options), rejected

    def __call__(self, batch: pa.Table) -> pa.Table:
        return told(self._scorer(batch), self._rejected)
