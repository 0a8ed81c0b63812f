"""The game `dp-sgd-steps` on fine-tunings of a language model: one canary gradient in each step."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.random import SeedSequence

from dpaudit import Verdict, audit, load_spec
from dpaudit.actors.work import Call
from dpaudit.claims import Claim, GaussianDP, Relation
from dpaudit.engine.games.steps.dp_sgd_coins import DpSgdCoins
from dpaudit.engine.games.steps.dp_sgd_steps import DpSgdSteps
from dpaudit.engine.planning.plan import make_plan
from dpaudit.errors import SpecError
from dpaudit.language_models.data.plain_texts import MadeSentences
from dpaudit.language_models.games.text_canaries import TextCanaries
from dpaudit.language_models.mechanisms.base_models import TinyTransformer, made_sentences
from dpaudit.language_models.mechanisms.fine_tuned_model import FineTunedModel
from dpaudit.language_models.mechanisms.fine_tuning.trainers import FullFineTuning, LoraFineTuning
from dpaudit.language_models.mechanisms.fine_tuning.training import FineTuning
from dpaudit.language_models.mechanisms.opacus_lora import OpacusLora
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Texts
from dpaudit.mechanisms.training.private.private_steps import ClaimedSteps, PrivateSteps, StepCanary
from tests.language_models.own_text_trainers import (
    ByHeart,
    HalfNoise,
    MirroredNoise,
    NoiseOfFirstStep,
    NoiseOnFactorA,
    NoiseOnFactorB,
    with_defect,
)
from tests.language_models.test_text_fine_tuning import ConstantProbe
from tests.loops import Cases

SETTINGS: dict[str, Any] = {"epsilon": 8.0, "batch_size": 16, "epochs": 50}
STEPS = {"name": "dp-sgd-steps", "trainings": 1}


def spec(trainer: Any, **changes: Any) -> Any:
    model = FineTunedModel(base=TinyTransformer(hidden=16, layers=1, steps=0), trainer=trainer)
    content = {
        "seed": 5,
        "data": MadeSentences(64),
        "split": {"target": 1.0, "reference": 0.0, "test": 0.0},
        "mechanism": model,
        "game": STEPS,
        "run": {"runner": "in-process", "figures": False, "repeats": 0},
    }
    return load_spec({**content, **changes})


@pytest.mark.parametrize("trainer", [LoraFineTuning, FullFineTuning, OpacusLora])
def test_a_correct_fine_tuning_keeps_the_claim_of_its_steps(trainer: type[Any], tmp_path: Path) -> None:
    """The seed is fixed; the error of the verdict is that of the game."""
    (result,) = audit(spec(trainer(**SETTINGS, accountant="rdp")), output=tmp_path / "run", quiet=True).results
    assert result.verdict is Verdict.NO_VIOLATION
    assert dict(result.finding.counts)["steps"] == 200  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("defect", "epsilon"),
    [(HalfNoise, 25.0), (NoiseOnFactorA, 8.0), (NoiseOnFactorB, 8.0), (NoiseOfFirstStep, 8.0), (MirroredNoise, 8.0)],
)
def test_steps_with_too_little_noise_are_rejected(defect: type[FineTuning], epsilon: float, tmp_path: Path) -> None:
    """The seed is fixed."""
    trainer = with_defect(defect)(**{**SETTINGS, "epsilon": epsilon})
    (result,) = audit(spec(trainer), output=tmp_path / "run", quiet=True).results
    assert result.verdict is Verdict.VIOLATION


def test_many_coins_a_step_find_half_of_the_noise_in_one_training(tmp_path: Path) -> None:
    """100 steps; the seed is fixed."""
    trainer = with_defect(HalfNoise)(**{**SETTINGS, "epochs": 25})
    (result,) = audit(spec(trainer, game="dp-sgd-coins"), output=tmp_path / "run", quiet=True).results
    assert result.verdict is Verdict.VIOLATION
    assert dict(result.finding.counts)["coins"] == 2_000  # type: ignore[union-attr]


def test_a_spec_names_the_parts() -> None:
    """From names alone; the claim of a step is that of its noise at the public size."""
    named = {
        "mechanism": {"name": "fine-tuning", "trainer": {"name": "lora", "epsilon": 8}},
        "data": {"name": "made-sentences", "rows": 100},
    }
    (entry,) = make_plan(spec(LoraFineTuning(), **named)).audits
    steps = LoraFineTuning(epsilon=8.0).claimed_steps(100)
    assert entry.effective_claim.epsilon == pytest.approx(GaussianDP(1 / steps.private.noise_multiplier).epsilon(1e-5))


def test_a_spec_that_has_no_steps_of_texts_says_why() -> None:
    with Cases() as cases:
        for words, changes in {
            "or fine-tunings of a language model by DP-SGD": {"mechanism": FineTunedModel()},
            "fine-tunings of a language model by DP-SGD (`name: fine-tuning`, with a finite": {
                "mechanism": FineTunedModel(trainer=ByHeart())
            },
            "needs rows of class Texts, got Examples": {"data": "digits"},
        }.items():
            with cases.case(words), pytest.raises(SpecError, match=re.escape(words)):
                make_plan(spec(LoraFineTuning(**SETTINGS), **changes))


def shown_steps(trainer: Any, texts: Texts) -> int:
    """Return the number of steps that a training on the texts shows."""
    model = FineTunedModel(base=TinyTransformer(hidden=16, layers=1, steps=0), trainer=trainer)
    steps = model.claimed_steps(len(texts))
    assert steps is not None
    canary = StepCanary(ConstantProbe(1.0), np.random.default_rng(0), clip=1.0, divisor=steps.divisor)
    model.show_text_steps(texts, canary, seed=SeedSequence(0), compute=Compute())
    return canary.step


def test_short_texts_count_as_records_and_a_training_that_diverges_shows_its_first_steps() -> None:
    """Opacus takes the sampling rate from the number of records; too short a text is one without loss."""
    texts = Texts((*made_sentences(32, np.random.default_rng(0)), "a"))
    few = {**SETTINGS, "epochs": 2, "accountant": "rdp"}
    for trainer in (OpacusLora(**few), LoraFineTuning(**few)):
        assert shown_steps(trainer, texts) == trainer.claimed_steps(33).count
    diverging = FullFineTuning(**few, optimizer="sgd", learning_rate=1e30)
    assert 1 <= shown_steps(diverging, texts) < diverging.claimed_steps(33).count


@dataclass(frozen=True)
class OneRateForAll:
    """A trainer whose steps do not depend on the number of records, and whose training fails."""

    def claim(self, records: int) -> Claim:
        return Claim(8.0, 1e-5, Relation.ADD_REMOVE)

    def claimed_steps(self, records: int) -> ClaimedSteps:
        return ClaimedSteps(PrivateSteps(1.0, 1.0, 0.1), 50)

    def train(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("the device is lost")


def test_no_training_is_said_to_have_fewer_texts_and_its_errors_are_shown(tmp_path: Path) -> None:
    game = {**STEPS, "trainings": 8}
    calls = [unit.task for unit in make_plan(spec(OneRateForAll(), game=game)).units if isinstance(unit.task, Call)]
    sizes = [dict(call.arguments)["size"] for call in calls if call.name == "train_steps"]
    assert sizes == [64] * 8
    report = audit(spec(OneRateForAll(), game=game), output=tmp_path / "run", quiet=True)
    assert report.results[0].verdict is Verdict.FAILED
    assert "the device is lost" in report.text()


def test_check_plays_the_steps_of_a_private_fine_tuning_first() -> None:
    model = FineTunedModel(trainer=LoraFineTuning(epsilon=8.0))
    checked = load_spec({"check": {"mechanism": model, "data": MadeSentences(100)}})
    assert [type(entry.game) for entry in checked.audits] == [DpSgdCoins, DpSgdSteps, DpSgdSteps, TextCanaries]
