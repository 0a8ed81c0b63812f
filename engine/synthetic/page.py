"""The page of the audit of a synthetic table: one self-contained HTML file."""

from __future__ import annotations

from pathlib import Path

from dpaudit.engine.drawing import svg_element
from dpaudit.engine.reading.verdict import COLOURS
from dpaudit.engine.report.page import figure_markup, template
from dpaudit.engine.synthetic.charts import figures
from dpaudit.engine.synthetic.result import SyntheticAudit
from dpaudit.errors import DataError, RunError
from dpaudit.plain_files import write_user_file


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
    text = template("synthetic.html.j2", "dpaudit.engine.synthetic").render(
        audit=audit, colour=COLOURS[audit.verdict], figures=pictures, rates=rates, measures=measures.values()
    )
    try:
        write_user_file(Path(path), text.encode())
    except RunError as err:
        raise DataError(str(err)) from err
