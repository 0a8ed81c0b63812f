"""The records of a run folder, which may be a stranger's: its scores, spec and claim are read, and nothing runs."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from dpaudit.actors.storage.bounded_parquet import read_bounded
from dpaudit.actors.storage.mirror import FileStore
from dpaudit.engine.reading.records import Records
from dpaudit.engine.request.audit_spec import slug
from dpaudit.engine.run.watching import point_of, run_status
from dpaudit.errors import DataError, RunError, SpecError, shortened


def records_in(place: str | Path, *, top: int, rate: float, audit: str | None) -> Records:
    """As `Report.records`, of a run folder with a report, a path or a URI.

    Raises: SpecError where it is none, or its game tells no records apart; RunError where no scores were kept.
    """
    status = run_status(place)
    status.found  # noqa: B018 - refuses a run without a report
    store = FileStore.at(place)
    with store.explain_errors("must be a run folder that can be read"):
        spec = store.content("spec.yaml") or b""
        names = sorted(store.file_infos())
    name, game = Records.selected_audit(spec.decode(errors="replace"), audit)
    results = [result for result in status.report["results"].items() if result["name"].name() == name]
    if len(results) != 1:
        raise SpecError(f"{shortened(place)} must have a report of {shortened(name)!r}; `dpaudit report` writes it")
    claim = point_of(results[0]["compared_with"])
    files = [file for file in names if file.startswith(f"scores/{slug(name)}/") and file.endswith(".parquet")]
    if not files:
        raise RunError(f"{shortened(place)}: no scores of {name!r} were kept; run it with keep_scores = true")
    tables = []
    for file in files:
        with store.explain_errors("must be a run folder that can be read"):
            content = store.content(file) or b""
        try:
            tables.append(read_bounded(pa.BufferReader(content), file, list(Records.COLUMNS)))
        except (pa.ArrowException, ValueError, KeyError) as err:
            raise DataError(f"{shortened(file)} must be a score table that can be read") from err
    return Records.of(name, game, claim, tables, top=top, rate=rate)
