"""Small versions of the benchmarks of text audits: honest and defective fine-tunings."""

from __future__ import annotations

from typing import Any

import numpy as np

import dpaudit
from benchmarks.text_defects import CASES, HONEST, play, remarks_in

CLAIM = dpaudit.Claim(1.0, 1e-5)
SMALL: dict[str, Any] = {"claim": CLAIM, "canaries": 80, "hidden": 32, "epochs": 14}


def test_a_correct_training_keeps_its_claim_and_nothing_is_said() -> None:
    estimate = play(CASES[HONEST]["own DP-SGD"], 0, **SMALL)
    assert estimate.verdict is dpaudit.Verdict.NO_VIOLATION
    assert remarks_in(estimate) == []


def test_noise_on_half_of_the_adapter_and_an_unused_engine_are_rejected() -> None:
    estimate = play(CASES["noise"]["noise on the matrices A only"], 0, **{**SMALL, "canaries": 160})
    assert estimate.verdict is dpaudit.Verdict.VIOLATION
    estimate = play(CASES["engine not used"]["a copy is trained"], 0, **SMALL)
    assert estimate.verdict is dpaudit.Verdict.VIOLATION
    assert "no batch reached the recorded model" in remarks_in(estimate)


def test_shuffled_batches_are_said_and_masked_secrets_are_inconclusive() -> None:
    estimate = play(CASES["sampling"]["one order for all epochs"], 0, **SMALL)
    assert estimate.verdict is dpaudit.Verdict.NO_VIOLATION
    assert "shuffled batches" in remarks_in(estimate)
    estimate = play(CASES["no loss"]["secrets masked"], 0, **SMALL)
    assert estimate.verdict is dpaudit.Verdict.INCONCLUSIVE
    assert remarks_in(estimate) == ["secrets masked"]


def test_parameters_outside_the_engine_are_trained_and_named() -> None:
    estimate = play(CASES["outside the engine"]["head"], 0, **SMALL)
    assert "parameters outside the optimizer" in remarks_in(estimate)
    assert "lm_head" in str(estimate)


def test_opacus_and_the_own_engine_agree() -> None:
    """Both clip gradients of records and add the same noise, so that models with one seed are equal."""
    by_hand, opacus = (play(training, 1, **SMALL) for training in CASES[HONEST].values())
    for name, scores in by_hand.attack_scores.items():
        assert np.allclose(scores, opacus.attack_scores[name], atol=1e-2), name
