"""All figures of a finding: every file of this folder is imported, so that each has registered the kind it draws."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from pathlib import Path

from dpaudit.engine.report.figures.draw import Context, Drawing, draw
from dpaudit.estimators.finding import Finding

for _module in pkgutil.iter_modules([str(Path(__file__).parent)]):
    if _module.name != Path(__file__).stem:
        import_module(f"{__package__}.{_module.name}")


def drawings(finding: Finding, context: Context) -> list[Drawing]:
    """What there is to see of a finding, in the order of its series."""
    drawn = (draw(series, context) for series in finding.series)
    return [drawing for drawing in drawn if drawing is not None]
