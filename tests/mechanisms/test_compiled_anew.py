"""A kernel that was just compiled and one that was loaded from the cache give the same bits."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TRAINED = """
import hashlib
import numpy as np
from dpaudit import Examples
from dpaudit.engine.request.build import build
from dpaudit.estimators.two_world import bands
from dpaudit.mechanisms.compute import Compute

rng = np.random.default_rng(0)
examples = Examples(rng.normal(size=(150, 11)).astype(np.float32), rng.integers(0, 7, 150), 7, "made")
digest = hashlib.sha256()
kinds = (("relu", "adam", "non-private"), ("tanh", "sgd", "alibi"), ("relu", "sgd", "dp-sgd"))
for activation, optimizer, model in kinds:
    recipe = {"name": "mlp", "hidden": [13, 9], "epochs": 4, "batch_size": 32}
    recipe |= {"activation": activation, "optimizer": optimizer}
    part = {"name": model, "model": recipe} | ({} if model == "non-private" else {"epsilon": 4.0})
    part |= {"sample_rate": 0.2} if model == "dp-sgd" else {}
    if model == "dp-sgd":
        part["model"]["momentum"] = 0.0
    trained = build("mechanism", part).fit(examples, seed=np.random.SeedSequence(1), compute=Compute(), validation=None)
    digest.update(np.asarray(trained.probabilities(examples.features)).tobytes())
times = np.sort(rng.random(60))
digest.update(np.float64(bands._compiled()(times, np.arange(60) // 2, 60, 8.0)).tobytes())
print(digest.hexdigest())
"""


@pytest.mark.nightly
def test_compiled_anew_and_loaded_from_the_cache_are_the_same(tmp_path: Path) -> None:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}

    def trained() -> str:
        ran = subprocess.run(
            [sys.executable, "-c", TRAINED], env=environment, capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    compiled = trained()
    assert list(tmp_path.rglob("*train_epoch*.nbc"))
    assert trained() == compiled
