"""The attacker's view of canary texts, and the interface of attacks on it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar, Protocol

from dpaudit.errors import require
from dpaudit.estimators.arguments import Floats
from dpaudit.language_models.mechanisms.fine_tuning.update_products import UpdateProducts
from dpaudit.language_models.mechanisms.token_statistics import TokenStatistics


@dataclass(frozen=True, eq=False)
class TextView:
    """Numbers of a training about all texts, planted or not. Coins act on them through the training alone.

    Attributes:
        trained: Log-probabilities of the secrets under the audited model.
        base: The same under the model before training; None if it is not known.
        reference: The same under another model that never saw the canaries; None if there is none.
        update: Gradients of the texts, compared with the change of the weights; None if no attack needs them.
    """

    shows: ClassVar[str] = "log-probabilities of secrets in texts"

    trained: TokenStatistics
    base: TokenStatistics | None = None
    reference: TokenStatistics | None = None
    update: UpdateProducts | None = None

    def __post_init__(self) -> None:
        shapes = {values.log_probability.shape for values in self.models.values()}
        require(len(shapes) == 1, "the log-probabilities of all models must be those of the same texts", shapes=shapes)
        require(
            self.update is None or self.update.product.size == len(self.trained),
            "products with the change must be those of the same texts",
        )

    @property
    def models(self) -> dict[str, TokenStatistics]:
        """Statistics by the names of the models that are known."""
        models = {name: getattr(self, name) for name in ("trained", "base", "reference")}
        return {name: values for name, values in models.items() if values is not None}

    @property
    def available(self) -> frozenset[str]:
        """Names of the attributes that are not None."""
        return frozenset(field.name for field in fields(self) if getattr(self, field.name) is not None)


class TextAttack(Protocol):
    """A membership attack on canary texts, registered as "text-attack". It is deterministic and sees no coin.

    Attributes:
        needs: Attributes of the view that the attack reads: "base", "reference", "update".
        needs_moments: True if it reads mean and deviation of the audited model.
    """

    needs: ClassVar[tuple[str, ...]]
    needs_moments: ClassVar[bool]

    def score(self, view: TextView) -> Floats:
        """Return one finite score for each text, shape (texts,); larger = more likely trained on."""
        ...
