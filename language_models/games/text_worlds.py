"""The game of two worlds of texts: was a language model fine-tuned with or without one secret?

Each trial is a fine-tuning of its own. A fair coin decides if the secret is among its texts, and the attacker guesses
the coin from the loss of the trained model on the secret. LoRA adapters are trained in stacks on one base model, so
hundreds of fine-tunings cost little more than one that has as many texts.

Source: Zanella-Beguelin et al. (2022), arXiv:2206.05199, Experiment 2, on texts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.actors.seed import Seed
from dpaudit.actors.work import Outcome, Work, measuring, unit
from dpaudit.claims import Relation
from dpaudit.engine.games.protocol import GameTraits, LossView, Played, Reading, Setting
from dpaudit.engine.games.trials import TrialGame, grouped_for_reading, scored_trials
from dpaudit.errors import InputError
from dpaudit.estimators.scores import Scores
from dpaudit.language_models.canary_kinds.random_tokens import RandomTokens
from dpaudit.language_models.canary_texts.drawing import StoredCanaries, drawn_canaries, new_tokens
from dpaudit.language_models.canary_texts.source import CanaryKind, TextSource
from dpaudit.language_models.games.text_canaries import TEXT_LEARNERS
from dpaudit.language_models.games.text_canaries_work import loaded_for
from dpaudit.language_models.mechanisms.base_models.protocol import BaseModelSource
from dpaudit.language_models.mechanisms.fine_tuned_model import (
    FineTunedModel,
    TextLearner,
    longest_text,
    training_texts,
)
from dpaudit.language_models.mechanisms.fine_tuning.records import Record, TrainingText
from dpaudit.language_models.mechanisms.token_statistics import TokenStatistics, token_statistics
from dpaudit.mechanisms.compute import Compute, TrainingError
from dpaudit.mechanisms.ranges import require_at_least
from dpaudit.mechanisms.texts import Texts
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
class TextWorlds(TrialGame):
    """Hundreds of fine-tunings, each with or without one secret text by a fair coin; the attacker guesses the coins.

    All of the target part is trained on in each trial. With `trainer: lora`, the trainings of a unit share one frozen
    base model on the device.

    Attributes:
        kind: The kind of the secret. `dpaudit list text-canaries` shows the kinds.
        texts: Texts of the secret, >= 1, which together are one record of the training.
    """

    traits: ClassVar[GameTraits] = GameTraits(
        relation=Relation.ADD_REMOVE,
        assumes="Nothing beyond fair coins and independent trainings: the secret and the attack were fixed before the "
        "audited models were trained.",
        views={TEXT_LEARNERS: SecretView},
        attack="loss",
        estimator="fair-coins",
        rows=Texts,
        independent_trials=True,
        repeats_calls=True,
        helps="more `trials`",
    )

    trials: int = 256
    kind: CanaryKind = field(default=RandomTokens(), metadata={"kind": "text-canary"})
    texts: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(1, self, "texts")

    def runs_per_unit(self, mechanism: Any) -> int:
        """Return the number of trainings in one unit: a stack, or one training that cannot be stacked."""
        return self.stack if stackable_trainer(mechanism) is not None else 1

    def play(self, setting: Setting, work: Work) -> Played:
        mechanism: TextLearner = setting.mechanism
        size = len(setting.parts.target) + 1  # the same in both worlds
        secret = work.add(
            draw_secret,
            self.kind,
            self.texts,
            mechanism.base,
            setting.part_argument("reference"),
            seed=setting.seed.child("secret"),
            label="secret",
            resources=setting.resources.without_gpu,
        )
        trials = work.split(
            train_worlds,
            self.trials,
            self.runs_per_unit(mechanism),
            mechanism,
            setting.required_part("target"),
            secret,
            size=size,
            seed=setting.seed.child("trials"),
            label="training trials",
            **setting.unit_options,
        )
        in_order = setting.reading is Reading.IN_ORDER
        scores = tuple(
            work.add(
                score_worlds,
                setting.attack,
                stacks,
                label=f"scores of {stacks[0].label.removeprefix('training ') if in_order else f'{self.trials} trials'}",
                resources=setting.resources.without_gpu,
            )
            for stacks in grouped_for_reading(trials, setting)
        )
        return Played(
            scores, trainings=trials, choices=(secret,), claim=mechanism.claim(size), reference=self.reference()
        )


@unit
def draw_secret(
    kind: CanaryKind, texts: int, base: BaseModelSource, reference: Texts | None, *, seed: Seed
) -> Outcome[StoredCanaries]:
    """Draw the secret whose membership is guessed."""
    model = base.load()
    source = TextSource(model.tokenizer, () if reference is None else reference.texts, model.module)
    number = int(seed.sequence().generate_state(1, np.uint64)[0] >> 1)
    secret = drawn_canaries(kind, source, canaries=1, repeat=(1,), records=texts, unit="user", rate=0.5, seed=number)
    words = ", ".join(repr(text.secret) for text in secret.texts[0])
    return Outcome(StoredCanaries.of(secret), notes=(f"secret: {words}",))


@dataclass(frozen=True, eq=False)
class WorldTrials:
    """Coins of T fine-tunings, and the log-probability of the secret under each model."""

    number: NDArray[np.int64]  # number of the trial, shape (T,)
    truth: NDArray[np.bool_]  # True if the secret was among the texts, shape (T,)
    failed: NDArray[np.bool_]  # True if the training failed, shape (T,)
    secret: NDArray[np.float64]  # log-probability of the secret in nats, shape (T,); NaN for a failed training


@unit
@measuring(lambda: ("failed_share",))
def train_worlds(
    mechanism: TextLearner,
    target: Texts,
    secret: StoredCanaries,
    compute: Compute,
    *,
    size: int,
    first: int,
    last: int,
    seed: Seed,
) -> Outcome[WorldTrials]:
    """Fine-tune on the texts, with or without the secret, and compute the log-probability of the secret."""
    canaries = secret.load()
    model = loaded_for(mechanism.base, canaries, compute)
    longest = longest_text(model, mechanism.max_tokens)
    record = tuple(TrainingText(text.tokens) for text in canaries.texts[0])
    if max(len(text.tokens) for text in record) > longest:
        raise InputError(
            f"the secret must have at most {longest} tokens, where texts are cut. Ask for a shorter one, or increase "
            "`max_tokens`"
        )
    records: list[Record] = [*((text,) for text in training_texts(model, target.texts, longest)), record]
    numbers = np.arange(first, last)
    truth = np.array([seed.child(number, "coin").rng().random() < 0.5 for number in numbers.tolist()])
    rows = [np.arange(len(records) - (not is_in)) for is_in in truth]
    spans = [text.span for text in canaries.texts[0]]
    seeds = [seed.child(number, "steps").sequence() for number in numbers.tolist()]
    outcomes: list[TokenStatistics | TrainingError] = []
    if (trainer := stackable_trainer(mechanism)) is not None and not new_tokens(canaries, model.tokenizer):
        from dpaudit.language_models.mechanisms.fine_tuning.adapter_stack import AdapterTask
        from dpaudit.language_models.mechanisms.fine_tuning.many_trainings import statistics_of_stack

        tasks = [AdapterTask(places, sequence) for places, sequence in zip(rows, seeds, strict=True)]
        outcomes = statistics_of_stack(trainer, model.module, records, tasks, spans, size=size, compute=compute)
    else:
        tokens = tuple(new_tokens(canaries, model.tokenizer))
        for places, sequence in zip(rows, seeds, strict=True):
            some = [records[place] for place in places]
            try:
                trained = mechanism.fine_tune(model, some, new_tokens=tokens, size=size, seed=sequence, compute=compute)
            except TrainingError as err:
                outcomes.append(err)
            else:
                outcomes.append(token_statistics(trained, spans))
    values = [
        np.nan if isinstance(outcome, TrainingError) else float(np.nansum(outcome.log_probability))
        for outcome in outcomes
    ]
    failures = tuple(str(outcome) for outcome in outcomes if isinstance(outcome, TrainingError))
    trials = WorldTrials(numbers, truth, np.isnan(values), np.array(values))
    return Outcome(trials, metrics={"failed_share": float(np.isnan(values).mean())}, failures=failures)


@unit
def score_worlds(attack: Any, stacks: tuple[WorldTrials, ...]) -> Iterator[Scores]:
    """Yield the scores of all trials as one replay."""
    trials = WorldTrials(
        *(np.concatenate([getattr(stack, part.name) for stack in stacks]) for part in fields(WorldTrials))
    )
    view = SecretView(trials.secret[~trials.failed])
    yield scored_trials(attack, view, number=trials.number, truth=trials.truth, failed=trials.failed)


def stackable_trainer(mechanism: Any) -> Any:
    """Return the trainer of a mechanism whose trainings run in stacks; None if they run one by one."""
    if type(mechanism) is not FineTunedModel:
        return None
    from dpaudit.language_models.mechanisms.fine_tuning.many_trainings import is_stackable

    return mechanism.trainer if is_stackable(mechanism.trainer) else None
