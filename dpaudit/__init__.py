"""dpaudit measures, by experiment, how much a machine-learning system leaks about its training data.

Public names are imported on first use, so that `import dpaudit` is fast.
"""

from __future__ import annotations

import contextlib
import os
from importlib import import_module
from types import FunctionType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpaudit.actors.unit import ResourceRequest as ResourceRequest
    from dpaudit.claims import Claim as Claim
    from dpaudit.claims.curve import Relation as Relation
    from dpaudit.claims.step_noise import CorrelatedNoise as CorrelatedNoise
    from dpaudit.claims.step_noise import DiscreteGaussianNoise as DiscreteGaussianNoise
    from dpaudit.claims.step_noise import GaussianNoise as GaussianNoise
    from dpaudit.claims.step_noise import LaplaceNoise as LaplaceNoise
    from dpaudit.claims.step_noise import MatrixNoise as MatrixNoise
    from dpaudit.engine.answer.result import AuditResult as AuditResult
    from dpaudit.engine.answer.run_report import Report as Report
    from dpaudit.engine.answer.verdict import Verdict as Verdict
    from dpaudit.engine.cli.trackers import log_to_mlflow as log_to_mlflow
    from dpaudit.engine.cli.trackers import log_to_wandb as log_to_wandb
    from dpaudit.engine.data.in_memory import rows as rows
    from dpaudit.engine.data.in_memory import table as table
    from dpaudit.engine.estimate.estimating import Estimate as Estimate
    from dpaudit.engine.estimate.estimating import estimate as estimate
    from dpaudit.engine.estimate.scorer import membership_scorer as membership_scorer
    from dpaudit.engine.observer.training_audit import TrainingAudit as TrainingAudit
    from dpaudit.engine.observer.training_audit import TrainingResult as TrainingResult
    from dpaudit.engine.request.audit_spec import Audit as Audit
    from dpaudit.engine.request.audit_spec import AuditSpec as AuditSpec
    from dpaudit.engine.request.audit_spec import RunOptions as RunOptions
    from dpaudit.engine.request.loading import load_spec as load_spec
    from dpaudit.engine.run.checking import check as check
    from dpaudit.engine.run.driver import audit as audit
    from dpaudit.engine.sweep.objective import objective as objective
    from dpaudit.engine.sweep.result import SweepResult as SweepResult
    from dpaudit.engine.sweep.running import restore_sweep as restore_sweep
    from dpaudit.engine.sweep.running import sweep as sweep
    from dpaudit.errors import AuditError as AuditError
    from dpaudit.estimators.bound import Bound as Bound
    from dpaudit.estimators.finding import Validity as Validity
    from dpaudit.language_models.canary_texts.canaries import Canaries as Canaries
    from dpaudit.language_models.canary_texts.loss_record import LossRecord as LossRecord
    from dpaudit.language_models.canary_texts.loss_record import preflight as preflight
    from dpaudit.language_models.front_door.estimating import TextEstimate as TextEstimate
    from dpaudit.language_models.front_door.estimating import estimate_text as estimate_text
    from dpaudit.language_models.front_door.estimating import text_statistics as text_statistics
    from dpaudit.language_models.front_door.making import canaries as canaries
    from dpaudit.language_models.front_door.text_audit import TextAudit as TextAudit
    from dpaudit.language_models.mechanisms.endpoint_log_probabilities import (
        EndpointLogProbabilities as EndpointLogProbabilities,
    )
    from dpaudit.mechanisms.adapters.own_predictor import from_predictor as from_predictor
    from dpaudit.mechanisms.adapters.own_torch import from_opacus as from_opacus
    from dpaudit.mechanisms.adapters.own_torch import from_torch as from_torch
    from dpaudit.mechanisms.adapters.own_training import from_callable as from_callable
    from dpaudit.mechanisms.adapters.own_training import from_steps as from_steps
    from dpaudit.mechanisms.adapters.own_training import from_summary as from_summary
    from dpaudit.mechanisms.adapters.scikit_learn import from_sklearn as from_sklearn
    from dpaudit.mechanisms.examples import Examples as Examples
    from dpaudit.synthetic_tables.front_door.auditing import synthetic as synthetic
    from dpaudit.synthetic_tables.front_door.ranking import RankedTables as RankedTables
    from dpaudit.synthetic_tables.front_door.ranking import rank_synthetic as rank_synthetic
    from dpaudit.synthetic_tables.front_door.result import SyntheticAudit as SyntheticAudit

__version__ = "0.1.0"

if "NUMBA_CACHE_DIR" not in os.environ and not os.access(os.path.dirname(__file__), os.W_OK):
    with contextlib.suppress(OSError):  # no folder at all can be written
        from dpaudit.plain_files import user_folder

        os.environ["NUMBA_CACHE_DIR"] = str(user_folder("XDG_CACHE_HOME", ".cache") / "numba")

_HOMES = {
    "Audit": "dpaudit.engine.request.audit_spec",
    "AuditError": "dpaudit.errors",
    "AuditResult": "dpaudit.engine.answer.result",
    "AuditSpec": "dpaudit.engine.request.audit_spec",
    "Bound": "dpaudit.estimators.bound",
    "Canaries": "dpaudit.language_models.canary_texts.canaries",
    "Claim": "dpaudit.claims",
    "CorrelatedNoise": "dpaudit.claims.step_noise",
    "DiscreteGaussianNoise": "dpaudit.claims.step_noise",
    "EndpointLogProbabilities": "dpaudit.language_models.mechanisms.endpoint_log_probabilities",
    "Estimate": "dpaudit.engine.estimate.estimating",
    "Examples": "dpaudit.mechanisms.examples",
    "GaussianNoise": "dpaudit.claims.step_noise",
    "LaplaceNoise": "dpaudit.claims.step_noise",
    "LossRecord": "dpaudit.language_models.canary_texts.loss_record",
    "MatrixNoise": "dpaudit.claims.step_noise",
    "RankedTables": "dpaudit.synthetic_tables.front_door.ranking",
    "Relation": "dpaudit.claims.curve",
    "Report": "dpaudit.engine.answer.run_report",
    "ResourceRequest": "dpaudit.actors.unit",
    "RunOptions": "dpaudit.engine.request.audit_spec",
    "SweepResult": "dpaudit.engine.sweep.result",
    "SyntheticAudit": "dpaudit.synthetic_tables.front_door.result",
    "TextAudit": "dpaudit.language_models.front_door.text_audit",
    "TextEstimate": "dpaudit.language_models.front_door.estimating",
    "TrainingAudit": "dpaudit.engine.observer.training_audit",
    "TrainingResult": "dpaudit.engine.observer.training_audit",
    "Validity": "dpaudit.estimators.finding",
    "Verdict": "dpaudit.engine.answer.verdict",
    "audit": "dpaudit.engine.run.driver",
    "canaries": "dpaudit.language_models.front_door.making",
    "check": "dpaudit.engine.run.checking",
    "estimate": "dpaudit.engine.estimate.estimating",
    "estimate_text": "dpaudit.language_models.front_door.estimating",
    "from_callable": "dpaudit.mechanisms.adapters.own_training",
    "from_opacus": "dpaudit.mechanisms.adapters.own_torch",
    "from_predictor": "dpaudit.mechanisms.adapters.own_predictor",
    "from_sklearn": "dpaudit.mechanisms.adapters.scikit_learn",
    "from_steps": "dpaudit.mechanisms.adapters.own_training",
    "from_summary": "dpaudit.mechanisms.adapters.own_training",
    "from_torch": "dpaudit.mechanisms.adapters.own_torch",
    "load_spec": "dpaudit.engine.request.loading",
    "log_to_mlflow": "dpaudit.engine.cli.trackers",
    "log_to_wandb": "dpaudit.engine.cli.trackers",
    "membership_scorer": "dpaudit.engine.estimate.scorer",
    "objective": "dpaudit.engine.sweep.objective",
    "preflight": "dpaudit.language_models.canary_texts.loss_record",
    "rank_synthetic": "dpaudit.synthetic_tables.front_door.ranking",
    "restore_sweep": "dpaudit.engine.sweep.running",
    "rows": "dpaudit.engine.data.in_memory",
    "sweep": "dpaudit.engine.sweep.running",
    "synthetic": "dpaudit.synthetic_tables.front_door.auditing",
    "table": "dpaudit.engine.data.in_memory",
    "text_statistics": "dpaudit.language_models.front_door.estimating",
}

__all__ = sorted([*_HOMES, "__version__"])


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'dpaudit' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    if isinstance(value, FunctionType):
        from dpaudit.errors import short_tracebacks
        from dpaudit.field_checks import checked_arguments
        from dpaudit.installation import explained

        value = globals()[name] = short_tracebacks(explained(checked_arguments(value)))
    return value


def __dir__() -> list[str]:
    return __all__
