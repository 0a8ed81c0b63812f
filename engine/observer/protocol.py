"""The interface of an audit that an adapter of a trainer calls."""

from __future__ import annotations

from typing import Any, Protocol


class Audit(Protocol):
    """Methods of an audit that adapters of trainers call; `TrainingAudit` has them."""

    clip: float
    divisor: float

    @property
    def awaits_observation(self) -> bool: ...

    def join(self, gradients: Any, *, per_example: bool = False, in_place: bool = False) -> Any: ...

    def observe(self, noisy: Any, *, divisor: float | None = None) -> None: ...

    def skip(self) -> None: ...
