"""Sessions and scorers as Dask and joblib send them to processes."""

from __future__ import annotations

from pathlib import Path

import joblib
import pyarrow as pa
from dask.distributed import Client, LocalCluster
from support.processes import large, where_weights_are
from support.scoring import INPUTS, corpus, same_rows, session

import onernn
from onernn.scoring import Scorer


def test_dask_scores_with_a_scorer_that_it_sent(tmp_path: Path) -> None:
    table = corpus(2000)
    with (
        LocalCluster(
            2, threads_per_worker=1, dashboard_address=None, local_directory=str(tmp_path)
        ) as cluster,
        Client(cluster) as client,
    ):
        scorer = client.scatter(Scorer(session(), INPUTS), broadcast=True)
        parts = [table.slice(at, 500) for at in range(0, 2000, 500)]
        made = client.gather(client.map(Scorer.__call__, [scorer] * 4, parts, pure=False))
    same_rows(pa.concat_tables(made), table)


def test_joblib_maps_weights_from_its_file(tmp_path: Path) -> None:
    model = onernn.Session(large(), threads=1)
    with joblib.parallel_config("loky", n_jobs=2, temp_folder=str(tmp_path), max_nbytes="1M"):
        found = joblib.Parallel()(joblib.delayed(where_weights_are)(model) for _ in range(2))
    for where in found:  # packed weights are copied: joblib aligns by 16 bytes, kernels read by 64
        assert [str(tmp_path) in each for each in where] == [True, False, *[True] * 6]
