"""The page of the audit of a synthetic table: one self-contained HTML file."""

from __future__ import annotations

from pathlib import Path

from dpaudit.engine.figures.drawing import svg_element
from dpaudit.engine.report.page import figure_markup, write_answer_page
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
    parts = {"audit": audit, "figures": pictures, "rates": rates, "measures": measures.values()}
    write_answer_page(path, "synthetic.html.j2", "dpaudit.synthetic_tables.front_door", title=audit.name, **parts)
