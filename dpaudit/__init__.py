"""dpaudit: measures, by experiment, how much a machine-learning system really leaks.

Names are imported when they are first asked for, so `import dpaudit` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpaudit.claims import Claim
    from dpaudit.claims.curve import Relation
    from dpaudit.engine.data.in_memory import table
    from dpaudit.engine.estimate.estimating import Estimate, estimate
    from dpaudit.engine.reading.result import AuditResult
    from dpaudit.engine.reading.run_report import Report
    from dpaudit.engine.reading.verdict import Verdict
    from dpaudit.engine.run.checking import check
    from dpaudit.engine.run.driver import audit
    from dpaudit.engine.spec.audit_spec import Audit, AuditSpec, RunOptions
    from dpaudit.engine.spec.loading import load_spec
    from dpaudit.engine.sweep.result import SweepResult
    from dpaudit.engine.sweep.running import restore_sweep, sweep
    from dpaudit.errors import AuditError
    from dpaudit.estimators.bound import Bound
    from dpaudit.estimators.finding import Validity
    from dpaudit.mechanisms.adapters.own_predictor import from_predictor
    from dpaudit.mechanisms.adapters.own_torch import from_opacus, from_torch
    from dpaudit.mechanisms.adapters.own_training import from_callable, from_steps, from_summary
    from dpaudit.mechanisms.adapters.scikit_learn import from_sklearn
    from dpaudit.mechanisms.examples import Examples

__version__ = "0.1.0"

_HOMES = {
    "Audit": "dpaudit.engine.spec.audit_spec",
    "AuditError": "dpaudit.errors",
    "AuditResult": "dpaudit.engine.reading.result",
    "AuditSpec": "dpaudit.engine.spec.audit_spec",
    "Bound": "dpaudit.estimators.bound",
    "Claim": "dpaudit.claims",
    "Estimate": "dpaudit.engine.estimate.estimating",
    "Examples": "dpaudit.mechanisms.examples",
    "Relation": "dpaudit.claims.curve",
    "Report": "dpaudit.engine.reading.run_report",
    "RunOptions": "dpaudit.engine.spec.audit_spec",
    "SweepResult": "dpaudit.engine.sweep.result",
    "Validity": "dpaudit.estimators.finding",
    "Verdict": "dpaudit.engine.reading.verdict",
    "audit": "dpaudit.engine.run.driver",
    "check": "dpaudit.engine.run.checking",
    "estimate": "dpaudit.engine.estimate.estimating",
    "from_callable": "dpaudit.mechanisms.adapters.own_training",
    "from_opacus": "dpaudit.mechanisms.adapters.own_torch",
    "from_predictor": "dpaudit.mechanisms.adapters.own_predictor",
    "from_sklearn": "dpaudit.mechanisms.adapters.scikit_learn",
    "from_steps": "dpaudit.mechanisms.adapters.own_training",
    "from_summary": "dpaudit.mechanisms.adapters.own_training",
    "from_torch": "dpaudit.mechanisms.adapters.own_torch",
    "load_spec": "dpaudit.engine.spec.loading",
    "restore_sweep": "dpaudit.engine.sweep.running",
    "sweep": "dpaudit.engine.sweep.running",
    "table": "dpaudit.engine.data.in_memory",
}

__all__ = [
    "Audit",
    "AuditError",
    "AuditResult",
    "AuditSpec",
    "Bound",
    "Claim",
    "Estimate",
    "Examples",
    "Relation",
    "Report",
    "RunOptions",
    "SweepResult",
    "Validity",
    "Verdict",
    "__version__",
    "audit",
    "check",
    "estimate",
    "from_callable",
    "from_opacus",
    "from_predictor",
    "from_sklearn",
    "from_steps",
    "from_summary",
    "from_torch",
    "load_spec",
    "restore_sweep",
    "sweep",
    "table",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'dpaudit' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
