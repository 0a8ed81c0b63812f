"""One Ray session for the whole run, started by the first test that asks for it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

# Two workers on two cores: libraries that start threads of their own would fight over them.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    from dpaudit.cluster.session import ray_session

    with ray_session(cpus=2):
        yield
