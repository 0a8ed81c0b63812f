"""Records that leak most, from a run folder that anyone may have written: it is parsed as data and nothing runs."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from dpaudit.actors.storage.bounded_parquet import read_bounded
from dpaudit.actors.storage.mirror import FileStore
from dpaudit.engine.answer.records import Records
from dpaudit.engine.request.audit_spec import slug
from dpaudit.engine.run.run_status import claim_point, run_status
from dpaudit.errors import DataError, RunError, SpecError, shortened


def records_in(place: str | Path, *, top: int, rate: float, audit: str | None) -> Records:
    """Return `Report.records` of the run folder `place`, a path or a URI.

    Raises: SpecError if it is no run folder with a report, or its game does not tell records apart; RunError if no
        scores were kept.
    """
    status = run_status(place)
    status.outcomes  # noqa: B018 - refuses a run without a report
    store = FileStore.at(place)
    with store.explain_errors("must be a run folder that can be read"):
        spec = store.content("spec.yaml") or b""
        names = sorted(store.file_infos())
    name, game = Records.selected_audit(spec.decode(errors="replace"), audit)
    results = [result for result in status.report["results"].items() if result["name"].name() == name]
    if len(results) != 1:
        raise SpecError(f"{shortened(place)} must have a report of {shortened(name)!r}; `dpaudit report` writes it")
    claim = claim_point(results[0]["compared_with"])
    files = [file for file in names if file.startswith(f"scores/{slug(name)}/") and file.endswith(".parquet")]
    if not files:
        raise RunError(f"{shortened(place)} has no scores of {name!r}. Run the audit with keep_scores = true")
    tables = []
    for file in files:
        with store.explain_errors("must be a run folder that can be read"):
            content = store.content(file) or b""
        try:
            tables.append(read_bounded(pa.BufferReader(content), file, list(Records.COLUMNS)))
        except (pa.ArrowException, ValueError, KeyError) as err:
            raise DataError(f"{shortened(file)} is not a readable score table") from err
    return Records.of(name, game, claim, tables, top=top, rate=rate)
