"""Check, before anything runs, that the audited models can be trained on the columns of the data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dpaudit.engine.request.audit_spec import Audit
from dpaudit.errors import InputError, SpecError
from dpaudit.mechanisms.examples import Examples, Rows
from dpaudit.mechanisms.protocols import FeatureChecker

MAX_DEPTH = 4  # of models inside learners


def require_trainable(audit: Audit, rows: Rows) -> None:
    """Raise SpecError if a model of the audit cannot be trained on the columns of `rows`."""
    if not isinstance(rows, Examples) or not len(rows):
        return
    parts = {"mechanism": audit.mechanism, "proxy": audit.proxy}
    models = [(field, model) for field, part in parts.items() for model in _models(part, MAX_DEPTH)]
    for field, model in models:
        try:
            model.require_features(rows)
        except InputError as err:
            name = getattr(type(model), "registered_name", type(model).__name__)
            raise SpecError(f"{audit.name}: {field}: {name} cannot be trained on these data: {err}") from err


def _models(part: Any, depth: int) -> Iterator[FeatureChecker]:
    """Yield the parts of a mechanism that check features: the mechanism itself or the model inside it."""
    if isinstance(part, FeatureChecker):
        yield part
    elif depth and (inner := getattr(part, "model", None)) is not None:
        yield from _models(inner, depth - 1)
