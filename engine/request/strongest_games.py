"""The strongest game for each kind of learner: `check` plays it first, and the page "Choose a game" prints it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dpaudit.claims import Relation
from dpaudit.mechanisms.adapters.own_training import OwnTraining
from dpaudit.mechanisms.adapters.scikit_learn import SklearnClassifier
from dpaudit.mechanisms.protocols import (
    LabelMechanism,
    Learner,
    ObservableLearner,
    SampledLearner,
    StartingLearner,
    StepLearner,
    SummarisedLearner,
    TextStepLearner,
)

RECORDS = (Relation.REPLACE, Relation.ADD_REMOVE)


@dataclass(frozen=True)
class LearnerKind:
    """A kind of learner, with the strongest game for claims about some relations.

    Attributes:
        words: Description that completes "my learner is ...".
        protocols: Interfaces of mechanisms of this kind; one of them suffices.
        games: Registered name of the strongest game by relation of the claim; one game for all relations of a kind.
        finds: Defects that this game finds.
    """

    words: str
    protocols: tuple[type, ...]
    games: Mapping[Relation, str]
    finds: str


LEARNER_KINDS = (
    LearnerKind(
        "DP-SGD whose noisy gradients can be seen (`from_steps`, `from_opacus`, `dp-sgd`)",
        (StepLearner, ObservableLearner),
        dict.fromkeys((Relation.ADD_REMOVE, Relation.ZERO_OUT), "dp-sgd-steps"),
        "noise and clipping of each step, in one training",
    ),
    LearnerKind(
        "a fine-tuning of a language model by DP-SGD (`fine-tuning`)",
        (TextStepLearner,),
        dict.fromkeys((Relation.ADD_REMOVE, Relation.ZERO_OUT), "dp-sgd-steps"),
        "noise of each step, in one training",
    ),
    LearnerKind(
        "a function that returns the released numbers (`from_summary`), or a learner with `summarise` or "
        "`sample_summaries`",
        (SummarisedLearner, SampledLearner),
        dict.fromkeys((Relation.LABEL, *RECORDS), "neighbours"),
        "too little noise in any number, a wrong sensitivity, bounds taken from the data",
    ),
    LearnerKind(
        "a torch module with your training loop (`from_torch`)",
        (StartingLearner,),
        {Relation.ADD_REMOVE: "last-iterate"},
        "too little noise or a wrong clip over all steps, in the final model",
    ),
    LearnerKind(
        "a function or an estimator that returns a model (`from_callable`, `from_sklearn`)",
        (OwnTraining, SklearnClassifier),
        dict.fromkeys(RECORDS, "neighbours"),
        "the same, as far as answers at a few points show it",
    ),
    LearnerKind(
        "any other learner that protects labels or replaced records",
        (LabelMechanism, Learner),
        dict.fromkeys((Relation.LABEL, Relation.REPLACE), "label-canaries"),
        "labels that the model memorises",
    ),
    LearnerKind(
        "any other learner that protects added or removed records",
        (LabelMechanism, Learner),
        {Relation.ADD_REMOVE: "ind-mia"},
        "membership of a point far from the data",
    ),
)
"""Kinds of learners; the first one that fits a mechanism and the relation of its claim counts."""


def strongest_game(mechanism: Any, relation: Relation) -> str:
    """Return the registered name of the strongest game for a learner's claim; "" if none is known."""
    fitting = (kind for kind in LEARNER_KINDS if isinstance(mechanism, kind.protocols) and relation in kind.games)
    return next((kind.games[relation] for kind in fitting), "")
