"""The game of two worlds of texts: was a language model fine-tuned with or without one secret?

Each trial is a fine-tuning of its own. A fair coin decides if the secret is among its texts, and the attacker guesses
the coin from the loss of the trained model on the secret. LoRA adapters are trained in stacks on one base model, so
hundreds of fine-tunings cost little more than one that has as many texts.

Source: Zanella-Beguelin et al. (2022), arXiv:2206.05199, Experiment 2, on texts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.actors.unit import Unit
from dpaudit.actors.work import Work
from dpaudit.claims import Relation
from dpaudit.engine.games.outcomes import Observed, Outcomes, Runs
from dpaudit.engine.games.protocol import LossView, Played, Setting
from dpaudit.engine.games.two_worlds import PairTraits, TwoWorlds
from dpaudit.errors import InputError
from dpaudit.language_models.canary_kinds.kinds import RandomTokens
from dpaudit.language_models.canary_texts.canaries import StoredCanaries, drawn_canaries, new_tokens
from dpaudit.language_models.canary_texts.source import CanaryKind, TextSource
from dpaudit.language_models.games.text_canaries import TEXT_LEARNERS
from dpaudit.language_models.games.text_canaries_work import loaded_for
from dpaudit.language_models.mechanisms.fine_tuned_model import (
    FineTunedModel,
    longest_text,
    training_texts,
)
from dpaudit.language_models.mechanisms.fine_tuning.records import Record, TrainingText
from dpaudit.language_models.mechanisms.token_statistics import TokenStatistics, token_statistics
from dpaudit.mechanisms.compute import TrainingError
from dpaudit.mechanisms.examples import Texts
from dpaudit.mechanisms.ranges import require_at_least
from dpaudit.registry import register


@dataclass(frozen=True, eq=False)
class SecretView(LossView):
    """Log-probability of the secret under the model of each trial."""

    secret: NDArray[np.float64]  # in nats, all tokens of the secret together, shape (T,)
    shows: ClassVar[str] = "the loss of each fine-tuned model on one secret"

    @property
    def log_probability(self) -> NDArray[np.float64]:
        return self.secret


@register("game", "text-worlds", source="arXiv:2206.05199, Experiment 2 (IND-MIA), on texts")
@dataclass(frozen=True)
class TextWorlds(TwoWorlds):
    """Hundreds of fine-tunings, each with or without one secret text by a fair coin; the attacker guesses the coins.

    All of the target part is trained on in each trial. With `trainer: lora`, the trainings of a unit share one frozen
    base model on the device.

    Attributes:
        kind: The kind of the secret. `dpaudit list text-canaries` shows the kinds.
        texts: Texts of the secret, >= 1, which together are one record of the training.
    """

    traits: ClassVar[PairTraits] = PairTraits(
        relation=Relation.ADD_REMOVE,
        assumes="Nothing beyond fair coins and independent trainings: the secret and the attack were fixed before the "
        "audited models were trained.",
        views={TEXT_LEARNERS: SecretView},
        attack="loss",
        rows=Texts,
    )

    optional_parts: ClassVar[tuple[str, ...]] = ("reference",)
    learns_once: ClassVar[bool] = False
    plays_without_noise: ClassVar[bool] = False
    measures_failures: ClassVar[bool] = True

    trials: int = 256
    kind: CanaryKind = field(default=RandomTokens(), metadata={"kind": "text-canary"})
    texts: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(1, self, "texts")

    def runs_per_unit(self, mechanism: Any) -> int:
        """Return the number of trainings in one unit: a stack, or one training that cannot be stacked."""
        return self.stack if stackable_trainer(mechanism) is not None else 1

    def pairs(self, mechanism: Any, rows: tuple[Any, ...], rng: np.random.Generator) -> Iterator[StoredCanaries]:
        """Yield the secret whose membership is guessed."""
        _, reference = rows
        model = mechanism.base.load()
        source = TextSource(model.tokenizer, () if reference is None else reference.texts, model.module)
        number = int(rng.integers(2**63))
        secret = drawn_canaries(
            self.kind, source, canaries=1, repeat=(1,), records=self.texts, unit="user", rate=0.5, seed=number
        )
        yield StoredCanaries.of(secret)

    def notes(
        self, mechanism: Any, rows: tuple[Any, ...], chosen: Sequence[Any], offered: int, tried: Outcomes | None
    ) -> tuple[str, ...]:
        (secret,) = chosen
        return (f"secret: {', '.join(repr(text.secret) for text in secret.load().texts[0])}",)

    def run(self, mechanism: FineTunedModel, pair: StoredCanaries, runs: Runs) -> Outcomes:
        """Fine-tune on the texts, with or without the secret; return the log-probability of the secret, in nats."""
        canaries, compute, target = pair.load(), runs.compute, runs.rows[0]
        size = len(target) + 1  # the same in both worlds
        model = loaded_for(mechanism.base, canaries, compute)
        longest = longest_text(model, mechanism.max_tokens)
        record = tuple(TrainingText(text.tokens) for text in canaries.texts[0])
        if max(len(text.tokens) for text in record) > longest:
            raise InputError(
                f"the secret must have at most {longest} tokens, where texts are cut. Ask for a shorter one, or "
                "increase `max_tokens`"
            )
        records: list[Record] = [*((text,) for text in training_texts(model, target.texts, longest)), record]
        rows = [np.arange(len(records) - (not is_in)) for is_in in runs.truth]
        spans = [text.span for text in canaries.texts[0]]
        seeds = [seed.sequence() for seed in runs.seeds()]
        outcomes: list[TokenStatistics | TrainingError] = []
        if (trainer := stackable_trainer(mechanism)) is not None and not new_tokens(canaries, model.tokenizer):
            from dpaudit.language_models.mechanisms.fine_tuning.adapter_stack import AdapterTask, statistics_of_stack

            tasks = [AdapterTask(places, sequence) for places, sequence in zip(rows, seeds, strict=True)]
            outcomes = statistics_of_stack(trainer, model.module, records, tasks, spans, size=size, compute=compute)
        else:
            tokens = tuple(new_tokens(canaries, model.tokenizer))
            for places, sequence in zip(rows, seeds, strict=True):
                some = [records[place] for place in places]
                try:
                    trained = mechanism.fine_tune(
                        model, some, new_tokens=tokens, size=size, seed=sequence, compute=compute
                    )
                except TrainingError as err:
                    outcomes.append(err)
                else:
                    outcomes.append(token_statistics(trained, spans))
        return runs.gave(
            [each if isinstance(each, TrainingError) else [np.nansum(each.log_probability)] for each in outcomes]
        )

    def scores(self, attack: Any, observed: Observed) -> NDArray[np.float64]:
        return self.scores_by_view(attack, observed, lambda runs: SecretView(runs.matrix()[:, 0]))

    def finished(self, played: Played, setting: Setting, work: Work, pairs: Unit) -> Played:
        return replace(played, claim=setting.mechanism.claim(len(setting.parts.target) + 1))


def stackable_trainer(mechanism: Any) -> Any:
    """Return the trainer of a mechanism whose trainings run in stacks; None if they run one by one."""
    if type(mechanism) is not FineTunedModel:
        return None
    from dpaudit.language_models.mechanisms.fine_tuning.adapter_stack import is_stackable

    return mechanism.trainer if is_stackable(mechanism.trainer) else None
