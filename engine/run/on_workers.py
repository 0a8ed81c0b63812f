"""Units on the workers of a Ray session: a local one, or a cluster."""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections import Counter
from collections.abc import Iterator, Sequence

from dpaudit.actors.backend import Backend, Deadlines
from dpaudit.actors.events import EventStream
from dpaudit.actors.storage.places import Scratch
from dpaudit.actors.unit import Unit
from dpaudit.engine.planning.plan import Plan, trainings_of


@contextlib.contextmanager
def pool(
    plan: Plan, missing: Sequence[Unit], events: EventStream, scratch: Scratch, deadlines: Deadlines
) -> Iterator[Backend]:
    """A pool of Ray workers for the units of a plan, with the metrics that tell of them, for a `with` block."""
    from dpaudit.cluster.session import ray_session

    with ray_session(plan.spec.run.address):
        from dpaudit.actors.metrics import RunMetrics  # both import Ray, which is quieted first
        from dpaudit.actors.pool import RayPool

        workers = RayPool(
            dict(plan.shared),
            demand=Counter(unit.resources for unit in missing),
            workers=plan.spec.run.workers,
            events=events,
            scratch=scratch,
            deadlines=deadlines,
        )
        try:
            gpus = {unit.key: unit.resources.gpus for unit in plan.units}
            metrics = RunMetrics(plan.spec.name, trainings_of(plan), gpus)
            threading.Thread(target=_load_ahead, name="dpaudit-load-ahead", daemon=True).start()
            with events.heard_by(metrics):
                yield workers
            metrics.tell()
        finally:
            workers.close()


def _load_ahead() -> None:
    """Loads, while workers start, what the report takes seconds to load at the end; what fails here fails there."""
    with contextlib.suppress(Exception):
        for name in (
            "dpaudit.engine.report.page",
            "numba",
            "matplotlib.backends.backend_agg",
            "matplotlib.backends.backend_svg",
        ):
            importlib.import_module(name)
