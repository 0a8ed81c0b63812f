"""The page of the audit of a synthetic table: one self-contained HTML file."""

from __future__ import annotations

from pathlib import Path

from dpaudit.engine.answer.verdict import COLOURS
from dpaudit.engine.figures.drawing import svg_element
from dpaudit.engine.report.page import figure_markup, template
from dpaudit.errors import DataError, RunError
from dpaudit.plain_files import write_user_file
from dpaudit.synthetic_tables.front_door.charts import figures
from dpaudit.synthetic_tables.front_door.result import SyntheticAudit


def write_page(path: str | Path, audit: SyntheticAudit) -> None:
    """Write the page of an audit.

    Raises: DataError if the file cannot be written.
    """
    pictures = [(picture.title, figure_markup(svg_element(picture.figure))) for picture in figures(audit)]
    measures = {measure.name: measure for measure in audit.measures}
    rates = {
        attack.name: [measures.pop(f"{measure} of {attack.name}", None) for measure in ("AUC", "TPR at 1 % FPR")]
        for attack in audit.attacks
    }
    text = template("synthetic.html.j2", "dpaudit.synthetic_tables.front_door").render(
        audit=audit, colour=COLOURS[audit.verdict], figures=pictures, rates=rates, measures=measures.values()
    )
    try:
        write_user_file(Path(path), text.encode())
    except RunError as err:
        raise DataError(str(err)) from err
