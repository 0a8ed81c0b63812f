"""The attacker's view of canary texts, and the interface of attacks on it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar, Protocol

from dpaudit.errors import require
from dpaudit.estimators.arguments import Floats
from dpaudit.mechanisms.language_models.token_statistics import TokenStatistics


@dataclass(frozen=True, eq=False)
class TextView:
    """Log-probabilities of the secrets of all texts, planted or not. Coins act on them through the training alone.

    Attributes:
        trained: Under the audited model.
        base: Under the model before training; None if it is not known.
        reference: Under another model that never saw the canaries; None if there is none.
    """

    shows: ClassVar[str] = "log-probabilities of secrets in texts"

    trained: TokenStatistics
    base: TokenStatistics | None = None
    reference: TokenStatistics | None = None

    def __post_init__(self) -> None:
        shapes = {values.log_probability.shape for values in self.models.values()}
        require(len(shapes) == 1, "the log-probabilities of all models must be those of the same texts", shapes=shapes)

    @property
    def models(self) -> dict[str, TokenStatistics]:
        """Statistics by the names of the models that are known."""
        models = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: values for name, values in models.items() if values is not None}


class TextAttack(Protocol):
    """A membership attack on canary texts, registered as "text-attack". It is deterministic and sees no coin.

    Attributes:
        needs: Models that the attack reads: "base", "reference".
        needs_moments: True if it reads mean and deviation of the audited model.
    """

    needs: ClassVar[tuple[str, ...]]
    needs_moments: ClassVar[bool]

    def score(self, view: TextView) -> Floats:
        """Return one finite score for each text, shape (texts,); larger = more likely trained on."""
        ...
