"""One place that starts or joins Ray, and quiets it: never at import, never over a session that is there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ray_session(address: str | None = None, *, cpus: int | None = None, gpus: int | None = None) -> Iterator[None]:
    """A Ray session for the length of a `with` block.

    Uses the session there is; else joins the cluster at `address`; else, when this process runs as a job of a
    cluster, joins that one; else starts a local one and ends it afterwards.

    Args:
        address: Address of a running cluster ("auto", "ray://host:10001", "host:6379"), or None.
        cpus: CPUs of a local session; None takes all.
        gpus: GPUs of a local session; None takes all.
    """
    # Said explicitly, this silences a warning; a choice the user made stays. An open Ray port is remote code execution.
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    if ray.is_initialized():
        yield
        return
    address = address or os.environ.get("RAY_ADDRESS")
    if address:
        ray.init(address=address, logging_level="ERROR", log_to_driver=False)
    else:
        ray.init(num_cpus=cpus, num_gpus=gpus, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    try:
        yield
    finally:
        ray.shutdown()
