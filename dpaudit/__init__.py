"""dpaudit: measures, by experiment, how much a machine-learning system really leaks.

Names are imported when they are first asked for, so `import dpaudit` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpaudit.engine.driver import audit
    from dpaudit.engine.report import AuditResult, Report
    from dpaudit.engine.spec import Audit, AuditSpec, RunOptions, load_spec
    from dpaudit.engine.verdict import Verdict
    from dpaudit.errors import AuditError
    from dpaudit.estimators.bound import Bound, Validity
    from dpaudit.mechanisms.claim import Claim, Relation
    from dpaudit.mechanisms.examples import Examples

__version__ = "0.1.0"

_HOMES = {
    "Audit": "dpaudit.engine.spec",
    "AuditError": "dpaudit.errors",
    "AuditResult": "dpaudit.engine.report",
    "AuditSpec": "dpaudit.engine.spec",
    "Bound": "dpaudit.estimators.bound",
    "Claim": "dpaudit.mechanisms.claim",
    "Examples": "dpaudit.mechanisms.examples",
    "Relation": "dpaudit.mechanisms.claim",
    "Report": "dpaudit.engine.report",
    "RunOptions": "dpaudit.engine.spec",
    "Validity": "dpaudit.estimators.bound",
    "Verdict": "dpaudit.engine.verdict",
    "audit": "dpaudit.engine.driver",
    "load_spec": "dpaudit.engine.spec",
}

__all__ = [
    "Audit",
    "AuditError",
    "AuditResult",
    "AuditSpec",
    "Bound",
    "Claim",
    "Examples",
    "Relation",
    "Report",
    "RunOptions",
    "Validity",
    "Verdict",
    "__version__",
    "audit",
    "load_spec",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'dpaudit' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
