"""The columns of the data, held to what the audited models can be trained on, before anything runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dpaudit.engine.request.audit_spec import Audit
from dpaudit.errors import InputError, SpecError
from dpaudit.mechanisms.examples import Examples, Rows
from dpaudit.mechanisms.protocols import FeatureChecker

MAX_DEPTH = 4  # of models inside learners


def require_trainable(audit: Audit, rows: Rows) -> None:
    """Raises SpecError if a model of an audit, which trains models, cannot be trained on the columns of the data."""
    if not isinstance(rows, Examples) or not len(rows):
        return
    parts = {"mechanism": audit.mechanism, "proxy": audit.proxy}
    for field, part in ((name, part) for name, whole in parts.items() for part in _models(whole, MAX_DEPTH)):
        try:
            part.require_features(rows)
        except InputError as err:
            name = getattr(type(part), "registered_name", type(part).__name__)
            raise SpecError(f"{audit.name}: {field}: {name} cannot be trained on these data: {err}") from err


def _models(part: Any, depth: int) -> Iterator[FeatureChecker]:
    """The parts of a mechanism that can tell which features they take: the mechanism itself, or the model in it."""
    if isinstance(part, FeatureChecker):
        yield part
    elif depth and (inner := getattr(part, "model", None)) is not None:
        yield from _models(inner, depth - 1)
