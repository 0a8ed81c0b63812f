"""The game `dp-sgd-steps` on fine-tunings of a language model: one canary gradient in each step."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from dpaudit import Verdict, audit, load_spec
from dpaudit.claims import GaussianDP
from dpaudit.engine.data.text.plain_texts import MadeSentences
from dpaudit.engine.games.steps.dp_sgd_steps import DpSgdSteps
from dpaudit.engine.games.text.text_canaries import TextCanaries
from dpaudit.engine.planning.plan import make_plan
from dpaudit.errors import SpecError
from dpaudit.mechanisms.adapters.opacus_lora import OpacusLora
from dpaudit.mechanisms.language_models.base_models.tiny_transformer import TinyTransformer
from dpaudit.mechanisms.language_models.fine_tuned_model import FineTunedModel
from dpaudit.mechanisms.language_models.fine_tuning.full import FullFineTuning
from dpaudit.mechanisms.language_models.fine_tuning.lora import LoraFineTuning
from dpaudit.mechanisms.language_models.fine_tuning.training import FineTuning
from tests.engine.own_text_trainers import (
    ByHeart,
    HalfNoise,
    MirroredNoise,
    NoiseOfFirstStep,
    NoiseOnFactorA,
    NoiseOnFactorB,
    with_defect,
)
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


def test_check_plays_the_steps_of_a_private_fine_tuning_first() -> None:
    model = FineTunedModel(trainer=LoraFineTuning(epsilon=8.0))
    checked = load_spec({"check": {"mechanism": model, "data": MadeSentences(100)}})
    assert [type(entry.game) for entry in checked.audits] == [DpSgdSteps, DpSgdSteps, TextCanaries]
