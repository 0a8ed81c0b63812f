"""Several synthetic tables of the same real rows, ranked by what they give away."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpaudit.consent import expand_path
from dpaudit.errors import DataError, printable_lines
from dpaudit.estimators.bound import format_lower
from dpaudit.synthetic_tables.front_door.auditing import synthetic
from dpaudit.synthetic_tables.front_door.inputs import data_frame
from dpaudit.synthetic_tables.front_door.result import SyntheticAudit

if TYPE_CHECKING:
    import pandas as pd

TOGETHER = "all bounds hold together: the {} tables share the error evenly"


@dataclass(frozen=True, eq=False)
class RankedTables:
    """The audits of several synthetic tables; `print` shows one line for each.

    Attributes:
        audits: The audits by the name of the table, the largest bound first.
    """

    audits: Mapping[str, SyntheticAudit]

    def __str__(self) -> str:
        return self.text()

    def text(self, *, verbose: bool = False) -> str:
        """Return one line for each table, and what the bounds mean; `verbose` adds the answer of each."""
        width = max(map(len, self.audits))
        lines = [
            f"epsilon >= {format_lower(audit.epsilon)}  {name:<{width}}  "
            + ", ".join(f"{risk.name} {format_lower(risk.bound.lower)}" for risk in audit.risks)
            + (f"  {audit.verdict}" if audit.tests[0].claims_something else "")
            for name, audit in self.audits.items()
        ]
        further = [f"\n{name}\n{audit.text(verbose=True)}" for name, audit in self.audits.items() if verbose]
        return "\n".join([*map(printable_lines, lines), TOGETHER.format(len(self.audits)), *further])

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON: the tables in their order."""
        return {"tables": [{"table": name, **audit.to_dict()} for name, audit in self.audits.items()]}

    def to_frame(self) -> pd.DataFrame:
        """Return one row for each table: table, epsilon, verdict, and the bound of each risk."""
        import pandas as pd

        rows = [
            {"table": name, "epsilon": audit.epsilon, "verdict": audit.verdict.value}
            | {risk.name: risk.bound.lower for risk in audit.risks}
            for name, audit in self.audits.items()
        ]
        return pd.DataFrame(rows)


def rank_synthetic(
    train: object,
    holdout: object,
    tables: str | Path | Mapping[str, object],
    *,
    progress: Callable[[str], object] | None = None,
    **options: Any,
) -> RankedTables:
    """Return the audits of several synthetic tables of one training file, the largest lower bound first.

        dpaudit.rank_synthetic("train.csv", "holdout.csv", "tables/", claim=3)

    The error is divided by the number of tables, so that all bounds hold together and the largest may be read.

    Args:
        train: As in `synthetic`.
        holdout: As in `synthetic`.
        tables: Folder whose files are the tables, or the tables by name.
        progress: Called with the name of each table, and of each step of a large audit, before it starts.
        options: Further arguments of `synthetic`, the same for all tables.
    Raises: As `synthetic`; DataError for a folder without files.
    """
    named = _files(expand_path(str(tables))) if isinstance(tables, str | Path) else dict(tables)
    if not named:
        raise DataError("at least one synthetic table must be given, got none")
    real = data_frame(train, "training"), data_frame(holdout, "holdout")
    audits = {}
    for name, table in named.items():
        if progress is not None:
            progress(name)
        audits[name] = synthetic(*real, table, releases=len(named), progress=progress, **options)
    return RankedTables(dict(sorted(audits.items(), key=lambda each: -each[1].epsilon)))


def _files(folder: Path) -> dict[str, object]:
    """Return the paths of the files of a folder by their names; hidden files are left out."""
    if not folder.is_dir():
        raise DataError(f"{folder} must be a folder of synthetic tables. For one table, use `synthetic`")
    return {path.name: path for path in sorted(folder.iterdir()) if path.is_file() and not path.name.startswith(".")}
