"""The game of canary texts: secrets are planted in the training data of a language model by coins, and guessed.

A coin decides for each secret whether it is planted in the training data. The model is fine-tuned once, and the
attacker guesses the coins from log-probabilities of all secrets, planted or not. Fresh canaries of several trainings
are guessed together: each coin decides about one training alone, so all trainings together are one mechanism with the
same epsilon and delta for each canary.

The sampling rate and the noise follow from a public size, the expected number of records, and never from the number of
canaries that were planted.

Source: Steinke et al. (2023), arXiv:2305.08846; canaries in text by Carlini et al. (2019), arXiv:1802.08232, Panda et
al. (2025), arXiv:2503.06808, and Meeus et al. (2025), arXiv:2502.14921.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from dpaudit.actors.unit import Unit
from dpaudit.actors.work import Work
from dpaudit.claims import Relation
from dpaudit.engine.games.protocol import Capability, CheckTest, GameTraits, Played, Setting, require_units
from dpaudit.engine.games.reference import WITHOUT_PRIVACY, CoinResponse, RareCoinResponse, Reference
from dpaudit.errors import SpecError, require
from dpaudit.language_models.attacks.text_attacks import CanaryLosses
from dpaudit.language_models.canary_kinds.kinds import RareSuffix
from dpaudit.language_models.canary_texts import canaries as canary_values
from dpaudit.language_models.canary_texts.rates import FAIR
from dpaudit.language_models.canary_texts.source import CanaryKind
from dpaudit.language_models.canary_texts.view import TextView
from dpaudit.language_models.games.text_canaries_work import (
    base_losses,
    draw_canaries,
    fine_tune,
    score_canaries,
)
from dpaudit.language_models.mechanisms.fine_tuned_model import FineTunedModel
from dpaudit.mechanisms.examples import Texts
from dpaudit.mechanisms.ranges import require_at_least
from dpaudit.registry import register

TEXT_LEARNERS = Capability(FineTunedModel, "fine-tunings of a language model (`name: fine-tuning`)")
CONTROL_REPLAYS = 20
"""Number of times that coins are tossed after the training for the control."""


@register(
    "game", "text-canaries", source="Steinke et al. (2023), arXiv:2305.08846; Panda et al. (2025), arXiv:2503.06808"
)
@dataclass(frozen=True)
class TextCanaries:
    """Secrets are planted in the texts of a fine-tuning by coins; the attacker guesses the coins from the model.

    The model is trained on the target part of the data. Canaries continue texts of the reference part. Perplexity is
    measured on the test part.

    Attributes:
        canaries: Number of canaries of each training, >= 2.
        kind: The kind of canary. `dpaudit list text-canaries` shows the kinds.
        repeat: Copies of each planted text, >= 1. Several numbers go to the canaries in turn.
        records: Texts of each canary, >= 1.
        unit: Subject of the claim. "record": each text is one record of the training, and the claim is compared by
            group privacy if a canary is several. "user": all texts and copies of a canary are one record.
        rate: Probability that a canary is planted, in (0, 1/2].
        trainings: Number of trainings with fresh canaries, >= 1; the canaries of all are guessed together.
        ceiling: Also train without privacy, with the same canaries and coins. What the attack shows of that model is
            the maximum detectable epsilon.
    """

    traits: ClassVar[GameTraits] = GameTraits(
        relation=Relation.ADD_REMOVE,
        assumes="Nothing beyond the coins: the challenger tosses a coin for each canary.",
        views={TEXT_LEARNERS: TextView},
        attack="canary-losses",
        estimator="simultaneous-guess-count",
        rows=Texts,
        asks_membership=True,
        helps="more `canaries`, or more `trainings`; canaries that are repeated, or of another `kind`",
        check_tests=(
            CheckTest(
                TEXT_LEARNERS,
                (Relation.ADD_REMOVE,),
                "secrets that the model learns by heart, with canaries that are planted by coins",
                trainings=2,  # one of them without privacy
                growth_on_repeat={"canaries": 2},
            ),
        ),
    )

    canaries: int = 500
    kind: CanaryKind = field(default=RareSuffix(), metadata={"kind": "text-canary"})
    repeat: tuple[int, ...] = (1,)
    records: int = 1
    unit: canary_values.Unit = "record"
    rate: float = FAIR
    trainings: int = 1
    ceiling: bool = True

    def __post_init__(self) -> None:
        require_at_least(2, self, "canaries")
        require_at_least(1, self, "records", "trainings")
        require(
            len(self.repeat) > 0 and min(self.repeat) >= 1,
            "repeat must be one or more whole numbers >= 1",
            repeat=self.repeat,
        )
        require(0 < self.rate <= FAIR, "rate must be in (0, 1/2]", rate=self.rate)
        traits = type(self).traits
        if self.unit == "user":
            traits = replace(traits, differ_in="all texts of a user, copies included")
        else:
            group = self.records * max(self.repeat)
            require(
                group & (group - 1) == 0,
                "records times the largest repeat must be a power of two, for group privacy",
                do="or set `unit: user`, which makes each canary one record of the training",
                records=group,
            )
            traits = replace(traits, records=group)
        if self.rate != FAIR:
            traits = replace(traits, estimator="rare-canaries")
        object.__setattr__(self, "traits", traits)

    def for_attack(self, attack: CanaryLosses) -> TextCanaries:
        """Return the game for an attack; measures of membership are left out where scores depend on coins.

        Raises: SpecError if the learned order is asked for with rare coins.
        """
        if not attack.is_learned:
            return self
        if self.rate != FAIR:
            raise SpecError(
                f"`order: learned` needs fair coins, got rate {self.rate:g}. Remove `rate`, or name one attack as "
                "`order`"
            )
        game = replace(self)
        object.__setattr__(game, "traits", replace(game.traits, asks_membership=False))
        object.__setattr__(game, "_of_order", {"guess": "signed"})
        return game

    @property
    def estimator_fields(self) -> Mapping[str, Any]:
        """Fields that the estimator must have for the scores of this game."""
        of_coins: Mapping[str, Any] = {} if self.rate == FAIR else {"rate": self.rate}
        return {**of_coins, **self.__dict__.get("_of_order", {})}

    def fewest_units(self, rows: int, rows_per_unit: int) -> tuple[int, int]:
        """Return lower limits of the number of units and of those with scores."""
        return 2 * self.trainings + 2, 1

    def size(self, texts: int) -> int:
        """Return the public number of records of a training on `texts` texts: canaries count as often as expected."""
        of_each = 1.0 if self.unit == "user" else self.records * float(np.mean(self.repeat))
        return texts + math.ceil(self.rate * self.canaries * of_each)

    def play(self, setting: Setting, work: Work) -> Played:
        require_units(self.fewest_units(len(setting.parts.target), setting.rows_per_unit)[0])
        if getattr(self.kind, "continues_texts", False) and not len(setting.parts.reference):
            raise SpecError(
                "canaries of this kind continue texts of the reference part, which is empty. Give `split.reference` a "
                "share above 0, or choose the kind random-tokens"
            )
        mechanism: FineTunedModel = setting.mechanism
        size, cheap = self.size(len(setting.parts.target)), setting.resources.without_gpu
        canary_sets = tuple(
            work.add(
                draw_canaries,
                replace(self, trainings=1, ceiling=False),
                mechanism.base,
                setting.part_argument("reference"),
                seed=setting.seed.child("canaries", number),
                label=f"canaries {number + 1} of {self.trainings}",
                resources=cheap,
            )
            for number in range(self.trainings)
        )
        base = work.add(
            base_losses, mechanism.base, canary_sets, label="base model on all canaries", resources=setting.resources
        )

        def tuned(played: Setting, label: str) -> tuple[Unit, ...]:
            return tuple(
                work.add(
                    fine_tune,
                    played.mechanism,
                    canaries,
                    setting.required_part("target"),
                    setting.part_argument("test"),
                    size=size,
                    alone=self.trainings == 1,
                    reads_update=setting.attack.reads_update,
                    seed=played.seed.child("training", number),
                    label=label if self.trainings == 1 else f"{label} {number + 1} of {self.trainings}",
                    **setting.unit_options,
                )
                for number, canaries in enumerate(canary_sets)
            )

        def scores(models: tuple[Unit, ...], label: str, **control: Any) -> Unit:
            common = (setting.attack, canary_sets, base, models)
            return work.add(score_canaries, *common, label=label, resources=cheap, **control)

        trainings = tuned(setting, "training")
        evidence = scores(trainings, "scores of the canaries")
        control = {"control_seed": setting.seed.child("control"), "replays": CONTROL_REPLAYS}
        bare = setting.noiseless if self.ceiling else None
        without = () if bare is None else tuned(bare, WITHOUT_PRIVACY)
        response = CoinResponse() if self.rate == FAIR else RareCoinResponse(self.rate)
        return Played(
            (evidence,),
            trainings=trainings,
            shadows=without,
            control=(scores(trainings, "control, coins tossed after the training", **control),),
            ceiling=(scores(without, "what a mechanism without privacy would show"),) if without else (),
            noiseless=bool(without),
            choices=(*canary_sets, *trainings),
            claim=mechanism.claim(size),
            reference=Reference(response, self.canaries * self.trainings, "canaries"),
            controlled_on="canaries whose coins were tossed after the training,",
        )
