"""The game `text-worlds`: a stack of fine-tunings with or without one secret is audited from a spec."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpaudit import Verdict, audit
from dpaudit.language_models.games import text_worlds
from dpaudit.language_models.games.text_worlds import TextWorlds, stackable_trainer
from dpaudit.language_models.mechanisms.fine_tuned_model import FineTunedModel
from dpaudit.language_models.mechanisms.fine_tuning import adapter_stack
from dpaudit.language_models.mechanisms.fine_tuning.trainers import FullFineTuning, LoraFineTuning
from dpaudit.language_models.mechanisms.fine_tuning.training import FineTuning
from dpaudit.mechanisms.compute import TrainingError
from dpaudit.mechanisms.training.private.private_steps import ClaimedSteps

HERE = "tests.language_models.test_text_worlds"
LORA = {"epsilon": 1.0, "rank": 4, "epochs": 4, "batch_size": 4, "learning_rate": 0.03}


@dataclass(frozen=True, kw_only=True)
class WithoutNoise(LoraFineTuning):
    """Planted defect: the noise is left out, and the claim is that of a training with noise."""

    def claim(self, records: int) -> Any:
        return LoraFineTuning(**{name: getattr(self, name) for name in LORA}).claim(records)

    def claimed_steps(self, records: int) -> ClaimedSteps:
        steps = super().claimed_steps(records)
        return replace(steps, private=replace(steps.private, noise_multiplier=0.0))


class OwnSteps(FineTuning):
    """Steps that a stack does not know."""


@dataclass(frozen=True, kw_only=True)
class OneByOne(LoraFineTuning):
    """Training with equal numbers, whose steps cannot be stacked."""

    def training_type(self) -> type[FineTuning]:
        return OwnSteps


def result_of(folder: Path, trainer: str, game: Mapping[str, Any], **settings: Any) -> Any:
    base = {"name": "tiny-transformer", "hidden": 32, "layers": 1, "steps": 20}
    spec = {
        "seed": 5,
        "data": {"name": "made-sentences", "rows": 20},
        "split": {"target": 1.0, "reference": 0.0, "test": 0.0},
        "mechanism": {"name": "fine-tuning", "base": base, "trainer": {"name": trainer, **LORA, **settings}},
        "game": {"name": "text-worlds", **game},
        "run": {"runner": "in-process", "figures": False, "repeats": 0},
    }
    (result,) = audit(spec, output=folder, quiet=True).results
    return result


def test_missing_noise_is_a_violation(tmp_path: Path) -> None:
    defect = result_of(tmp_path / "defect", f"{HERE}:WithoutNoise", {"trials": 32, "stack": 16})
    assert defect.verdict is Verdict.VIOLATION
    assert defect.finding.lower > 1
    assert dict(defect.choices)["secret"]


def test_a_private_training_is_no_violation(tmp_path: Path) -> None:
    honest = result_of(tmp_path / "honest", "lora", {"trials": 32, "stack": 16})
    assert honest.verdict is Verdict.NO_VIOLATION
    assert honest.claimed == LoraFineTuning(**LORA).claim(21)  # type: ignore[arg-type]


def test_a_stack_gives_the_scores_of_trainings_one_by_one(tmp_path: Path) -> None:
    tables = [
        result_of(tmp_path / name.rpartition(":")[2], name, {"trials": 6, "stack": 4}, epochs=1).scores()
        for name in ("lora", f"{HERE}:OneByOne")
    ]
    stacked, alone = (table.sort_values("canary") for table in tables)
    assert (stacked["truth"].to_numpy() == alone["truth"].to_numpy()).all()
    np.testing.assert_allclose(stacked["score"], alone["score"], atol=1e-3)
    assert stacked["score"].std() > 0.01


def test_a_failed_training_is_a_trial_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts for the world with the secret, which may have caused it."""
    statistics = adapter_stack.statistics_of_stack

    def failing(*arguments: Any, **options: Any) -> list[Any]:
        return [TrainingError("not finite"), *statistics(*arguments, **options)[1:]]

    monkeypatch.setattr(adapter_stack, "statistics_of_stack", failing)
    result = result_of(tmp_path, "lora", {"trials": 4, "stack": 4}, epochs=1)
    (failed,) = result.failed_trials
    assert "not finite" in failed
    assert np.isposinf(result.scores().sort_values("canary")["score"].iloc[0])


def test_a_secret_that_would_be_cut_is_an_error(tmp_path: Path) -> None:
    game = {"trials": 4, "kind": {"name": "random-tokens", "length": 300}}
    result = result_of(tmp_path, "lora", game)
    assert result.verdict is Verdict.FAILED
    assert "at most 256 tokens" in str(result)


def test_only_trainings_whose_steps_are_ours_are_stacked() -> None:
    for trainer, expected in (
        (LoraFineTuning(), 64),
        (WithoutNoise(), 64),
        (OneByOne(), 1),
        (LoraFineTuning(trained_tokens=(3,)), 1),
        (FullFineTuning(), 1),
    ):
        mechanism = FineTunedModel(trainer=trainer)
        assert TextWorlds().runs_per_unit(mechanism) == expected
        assert (stackable_trainer(mechanism) is not None) == (expected > 1)
    assert text_worlds.stackable_trainer(object()) is None
