"""An audit that accompanies one training with differential privacy: the class `dpaudit.TrainingAudit`."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from datetime import date
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpaudit.claims import Claim, ConvertedClaim, Relation, parse_claim
from dpaudit.claims.composition import SubsampledGaussian
from dpaudit.claims.step_noise import GaussianNoise, LaplaceNoise, MatrixMechanism, StepNoise
from dpaudit.engine.answer.answer_words import NOT_SHOWN
from dpaudit.engine.answer.record import Record, Sensitivity, Test, Verb
from dpaudit.engine.answer.verdict import Answer, Answered, Verdict, decide
from dpaudit.engine.games.steps.step_observer import StepObserver
from dpaudit.engine.games.steps.suspects import Part, Suspect, suspects
from dpaudit.engine.observer import compiled
from dpaudit.engine.observer.batch_sampling import of_batches, participation_remarks, repeated_in_batches
from dpaudit.engine.observer.coins import COINS, SURE, Change, detectable_noise, plan_coins
from dpaudit.engine.observer.leaves import Places, leaves, like, names_of, shapes_of, with_examples
from dpaudit.engine.observer.processes import Processes, Share
from dpaudit.errors import InputError, require
from dpaudit.estimators.bound import Bound
from dpaudit.estimators.one_run.coin_averages import CoinAverages
from dpaudit.estimators.scores import StepScores
from dpaudit.field_checks import checked_methods
from dpaudit.plain_files import write_atomically
from dpaudit.tensors import numpy_of

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

CONFIDENCE = 0.95
"""Confidence of the printed bound."""
DELTA = 1e-5
"""Delta of the bound of a step if none is claimed: Gaussian noise has no finite epsilon at delta = 0."""
OVERSPENT = 0.02
"""Share by which the epsilon of the accountant may exceed the claim, for accountants that round."""


@dataclass(frozen=True, eq=False)
class TrainingResult(Answered):
    """Result of an audit that accompanied a training.

    Attributes:
        name: Name of the audit.
        test: The test of what the claim allows each step.
        scores: Score and truth of each coin of the finished steps.
        notes: Observations and assumptions, in sentences.
        suspects: Parts of the training that the observed steps point to, which are hints.
    """

    name: str
    test: Test
    scores: StepScores
    notes: tuple[str, ...]
    suspects: tuple[Suspect, ...] = ()

    @property
    def record(self) -> Record:
        """Record from which the answer is decided."""
        return Record(self.name, (self.test,), verb=Verb.TRAINING)

    @property
    def bound(self) -> Bound:
        """Lower bound on the privacy loss of a step."""
        assert isinstance(self.test.finding, Bound)
        return self.test.finding

    @property
    def p_value(self) -> float:
        """p-value of the claim."""
        assert self.test.p_value is not None
        return self.test.p_value

    @cached_property
    def share_right(self) -> float:
        """Share of the coins that were guessed right."""
        return float(((self.scores.score > 0) == self.scores.truth).mean())

    @cached_property
    def answer(self) -> Answer:
        """Verdict on the claim, with what it points to and the notes."""
        hints = "; ".join(map(str, self.points_to))
        further = [*([("points-to", hints)] if hints else []), *(("note", note) for note in self.notes)]
        return decide(self.record).with_lines(further)

    @property
    def points_to(self) -> tuple[Suspect, ...]:
        """Suspects to print: all of them if the verdict is VIOLATION or UNDECIDED, else of batches and account."""
        is_open = decide(self.record).verdict in (Verdict.VIOLATION, Verdict.UNDECIDED)
        return tuple(each for each in self.suspects if is_open or each.part in (Part.SAMPLING, Part.ACCOUNTING))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "verdict": self.verdict.value,
            "answer": self.answer.to_dict(),
            "bound": self.bound.to_dict(),
            "p_value": self.p_value,
            "share_right": self.share_right,
            "points_to": [{"part": each.part.value, "measured": each.measured} for each in self.points_to],
            "notes": list(self.notes),
        }

    def text(self, *, verbose: bool = False) -> str:
        """Return the verdict with labelled lines below it; `verbose` adds details."""
        return self.answer.text(verbose=verbose)

    def save(self, folder: str | Path) -> None:
        """Write the result to a new folder, for `dpaudit report` and `dpaudit card`, and as a page.

        The files are `training.json` and `report.html`; they say that the training was canaried.
        Raises: FileExistsError if the folder exists.
        """
        from dpaudit import __version__
        from dpaudit.engine.exits import in_json
        from dpaudit.engine.report.page import write_answer_page
        from dpaudit.engine.run.run_status import TRAINING

        steps = dict(self.bound.counts)["steps"]
        result = {
            "name": self.name,
            "scope": self.test.scope,
            **self.to_dict(),
            "claim": self.test.claimed,
            "finding": {"lower": self.bound.lower, "delta": self.bound.delta},
            "assumes": "the observed sums are those that the model gets, with the canaries in them",
            "mechanism": "the steps of one training",
            "data": "its records",
            "game": f"canaries that joined {steps:,} steps by coins",
        }
        facts = {"date": f"{date.today()}", "version": f"dpaudit {__version__}", "canaried": self.notes[0]}
        Path(folder).mkdir(parents=True)
        content = {"name": self.name, "training": facts, "joint": None, "results": [result]}
        write_atomically(Path(folder) / TRAINING, lambda file: file.write(in_json(content).encode()))
        about = f"Audit of {steps:,} steps of a training by dpaudit {__version__}, {facts['date']}"
        page = {"title": self.name, "about": about, "answer": self.answer, "not_shown": NOT_SHOWN[0]}
        write_answer_page(Path(folder) / "report.html", "answer.html.j2", "dpaudit.engine.report", **page)


@checked_methods
class TrainingAudit:
    """An audit of the steps of one training that is running anyway: canaries join its steps, and coins decide which.

        audit = dpaudit.TrainingAudit(dpaudit.GaussianNoise(1.1), clip=1.0)
        for step in range(steps):
            total = audit.join(sum_of_clipped_gradients)
            noisy = total + noise
            audit.observe(noisy)
        print(audit.result)

    Each step has some coins, and each coin has its own canary: one clip in its own direction. Given all earlier
    releases, a step is a mechanism, so the result holds however the training adapts. The audit tests the claim that
    the stated noise gives each step. The canaries are part of the training: with k coins, some k / 2 clips are
    added to each sum, in directions orthogonal to each other. Use a replica if the model must not change.

    Each process of a distributed training creates the audit with the same `seed` and makes the same calls: `join` with
    its own gradients, `observe` with what all of them got.
    """

    def __init__(
        self,
        noise: StepNoise | float,
        *,
        clip: float = 1.0,
        divisor: float = 1.0,
        claim: Claim | float | tuple[float, float] | str | None = None,
        coins: int | None = None,
        sampling_rate: float | None = None,
        steps: int | None = None,
        records: int | None = None,
        distributed: Share | None = None,
        name: str = "training",
        seed: int | None = None,
    ) -> None:
        """Prepare the audit.

        Args:
            noise: The claimed noise of the steps, or the multiplier of independent Gaussian noise.
            clip: Largest norm of one record's contribution to the sum, > 0.
            divisor: Divisor of the noisy sum that is observed, > 0, such as the expected batch size.
            claim: Claim of the whole training, which the answer mentions: a `Claim`, epsilon, (epsilon, delta), ...
            coins: Number of coins of a step, >= 1; fewer in a model with fewer than 3 weights for each. None for as
                many as `plan` chooses for `steps`, or 20 if these are not stated.
            sampling_rate: Rate of Poisson sampling of the training, in (0, 1], for the cost that the answer mentions.
            steps: Number of steps of the training, >= 1, likewise.
            records: Number of records of the training data, >= 1, which `batch` needs.
            distributed: "records" if the gradients of several processes are added up before the noise (DDP); "weights"
                if each has a shard of them (FSDP); None in one process.
            name: Name of the audit in its answer.
            seed: Seed of directions and coins, the same in all processes of a training; None draws one.
        """
        self.noise: StepNoise = GaussianNoise(float(noise)) if isinstance(noise, int | float) else noise
        for number, value in (("clip", clip), ("divisor", divisor)):
            require(0 < value < math.inf, f"{number} must be > 0 and finite", given=value)
        require(coins is None or coins >= 1, "coins must be >= 1", coins=coins)
        self.clip, self.divisor, self.name = clip, divisor, name
        self._whole = _WholeTraining.of(claim, sampling_rate, steps)
        require(
            not isinstance(self.noise, MatrixMechanism) or sampling_rate in (None, 1),
            "correlated noise has no claim for Poisson sampling",
            do="leave `sampling_rate` out; records take part as the noise states it",
            sampling_rate=sampling_rate,
        )
        require(records is None or records >= 1, "records must be >= 1", records=records)
        self._coins, self._records = coins, records
        self._batches: list[NDArray[np.int64]] = []
        self._processes = Processes.of(distributed)
        require(
            distributed is None or seed is not None, "a distributed training needs a `seed` that all processes state"
        )
        directions_seed, coins_seed = np.random.SeedSequence(seed).spawn(2)
        if distributed == "weights":
            directions_seed = directions_seed.spawn(self._processes.count)[self._processes.rank]
        self._directions_rng, self._coins_rng = map(np.random.default_rng, (directions_seed, coins_seed))
        self._observer: StepObserver | None = None
        self._joined: Any = None  # `_JoinedStep` from its coins to its observation

    @classmethod
    def of_opacus(cls, optimizer: Any, **options: Any) -> TrainingAudit:
        """Return an audit of all further steps of an optimizer of Opacus. The training needs no other change.

            module, optimizer, loader = PrivacyEngine().make_private(...)
            audit = dpaudit.TrainingAudit.of_opacus(optimizer, claim=(3, 1e-5))
            ...                                                    # the training as it is
            print(audit.result)

        The canaries join between clipping and noise. Each way of clipping, ghost clipping, virtual steps and several
        processes work alike; for these, state `seed`.

        Args:
            optimizer: The optimizer that `make_private` returned.
            options: Further arguments of the class, such as `claim` and `coins`.
        Raises: InputError for another optimizer, or one without noise.
        """
        from dpaudit.engine.observer.opacus import attach, stated_by

        audit = cls(**stated_by(optimizer) | options)
        attach(audit, optimizer)
        return audit

    @classmethod
    def of_keras(cls, model: Any, **options: Any) -> TrainingAudit:
        """Return an audit of all further steps of a model of Keras. The training needs no other change.

            model = jax_privacy.keras_api.make_private(model, parameters)
            audit = dpaudit.TrainingAudit.of_keras(model)
            model.fit(...)
            print(audit.result)

        Args:
            model: The model that `make_private` returned, before its first `fit`.
            options: Further arguments of the class, such as `coins`.
        Raises: InputError for another model.
        """
        from dpaudit.engine.observer.private_keras import attach, stated_by

        audit = cls(**stated_by(model) | options)
        attach(audit, model)
        return audit

    @classmethod
    def of_flower(cls, strategy: Any, **options: Any) -> TrainingAudit:
        """Return an audit of all further rounds of a strategy of Flower. A client is the unit of privacy.

            strategy = DifferentialPrivacyServerSideFixedClipping(FedAvg(), 1.0, 0.5, num_sampled_clients=40)
            audit = dpaudit.TrainingAudit.of_flower(strategy)
            strategy.start(grid, arrays, num_rounds=100)
            print(audit.result)

        Clients of the audit reply in each round with updates beyond the clip, each with as much weight as the client
        with the most.

        Args:
            strategy: A strategy with differential privacy that clips at the server, by a fixed or an adaptive norm.
            options: Further arguments of the class, such as `claim` and `coins`.
        Raises: InputError for another strategy.
        """
        from dpaudit.engine.observer.flower import attach, stated_by

        audit = cls(**stated_by(strategy) | options)
        attach(audit, strategy)
        return audit

    plan = staticmethod(plan_coins)

    @property
    def awaits_observation(self) -> bool:
        """True if a step has joined its canaries and was not observed yet."""
        return self._joined is not None and self._joined.base is not None

    def skip(self) -> None:
        """Give up a step that joined its canaries and is never observed; its coins count as guessed wrong."""
        if self.awaits_observation:
            self._steps.skip(self._joined.coins)
            self._joined = None

    @property
    def step(self) -> int:
        """Number of steps so far."""
        return 0 if self._observer is None else self._observer.step

    def participates(self) -> Flags:
        """Return the coins of the step that comes next: True for each canary that joins, shape (coins,).

        Raises: InputError before the first `join`, which knows how large the model is.
        """
        require(self._observer is not None, "the coins of the first step are tossed when it joins its canaries")
        if self._joined is None:
            self._joined = _JoinedStep(self._coins_rng.random(self._steps.directions.coins) < 0.5)
        coins: Flags = self._joined.coins
        return coins

    def join(self, gradients: Any, *, per_example: bool = False, in_place: bool = False) -> Any:
        """Return the gradients of a step with its canaries; call once for each step.

        Args:
            gradients: The sum of the clipped gradients: one vector, or a list or mapping of tensors. Or the gradients
                before the clip: one matrix of shape (batch, weights), or tensors as `per_example` says.
            per_example: True for a list or mapping of tensors whose first axis is the example. In each step, as many
                examples as there are coins are appended, those of absent canaries with zeros, so sizes tell nothing.
            in_place: True to change the tensors of a sum themselves.
        Raises: InputError if the last step was not observed, or for gradients of another size.
        """
        if compiled.is_traced(gradients):
            require(not per_example, "in a compiled function of JAX, `join` takes the sum of the clipped gradients")
            return compiled.joined(self.join, gradients)
        require(
            not self.awaits_observation, f"step {self.step} must be observed before the next one joins its canaries"
        )
        whole = leaves(gradients)
        if per_example or (len(whole) == 1 and whole[0].ndim == 2):
            return self._join_examples(gradients)
        self._begin(gradients, shapes_of(gradients))
        self._joined = replace(
            self._joined, base=self._processes.of_all("records", self._places.at(gradients) / self.clip)
        )
        if not self._processes.adds_canaries:
            return gradients
        return self._places.add(gradients, self.clip * self._steps.effects(self._joined.coins), in_place=in_place)

    def batch(self, rows: ArrayLike) -> None:
        """Record which records a step uses, so that the answer says if they were sampled as the accountant assumes.

        Args:
            rows: Numbers of the records in the batch, each in [0, `records`), or a mask of all records.
        Raises: InputError without `records`, or for numbers out of range.
        """
        require(self._records is not None, "`batch` needs the number of records: TrainingAudit(..., records=n)")
        numbers = np.atleast_1d(numpy_of(rows))
        if numbers.dtype == np.bool_:
            require(numbers.shape == (self._records,), "a mask must have one bit for each record", shape=numbers.shape)
            numbers = np.flatnonzero(numbers)
        in_range = numbers.size == 0 or (numbers.min() >= 0 and numbers.max() < self._records)
        require(in_range, f"rows must be numbers of records below {self._records}", largest=numbers.max(initial=0))
        self._batches.append(numbers.astype(np.int64))

    def observe(self, noisy: Any, *, divisor: float | None = None) -> None:
        """Record the noisy sum of a step.

        Args:
            noisy: The noisy sum after its division: the same shape as a sum in `join`, or one vector.
            divisor: The divisor of this step, > 0; None for that of the audit.
        Raises: InputError if the step has not joined its canaries, or for another size.
        """
        if compiled.is_traced(noisy):
            compiled.observed(partial(self.observe, divisor=divisor), noisy)
            return
        joined = self._joined
        if joined is None or joined.base is None:
            raise InputError(f"step {self.step} must join its canaries before it is observed, once")
        sizes = [math.prod(shape) for shape in shapes_of(noisy)]
        require(
            sum(sizes) == self._weights,
            "an observed sum must have all weights",
            weights=sum(sizes),
            expected=self._weights,
        )
        places = self._places if sizes == self._sizes else Places(sizes, self._steps.directions.place)
        released = places.at(noisy) * ((divisor or self.divisor) / self.clip)
        self._steps.see(released - joined.base, joined.coins, is_on_grid=self.noise.is_on_grid(released))
        self._joined = None

    @property
    def result(self) -> TrainingResult:
        """The answer from all steps so far, as often as wanted, in every process of a training that divides weights.

        It guesses the last steps without waiting for the next ones, once and for all. A second guess of the same step
        would be a second chance, for which the bets over all steps do not pay.
        Raises: InputError before the first step.
        """
        compiled.wait()
        require(self.step > 0, "the answer exists once a step was observed")
        return self._answer(self._steps.evidence())

    @property
    def _steps(self) -> StepObserver:
        assert self._observer is not None
        return self._observer

    @property
    def _weights(self) -> int:
        return sum(self._sizes)

    def _begin(self, gradients: Any, shapes: list[tuple[int, ...]], *, rows: bool = False) -> None:
        """Draw the directions in the first step, check the size in later ones, and toss the coins of the step."""
        sizes = [math.prod(shape) for shape in shapes]
        if self._observer is None:
            coins = self._coins or COINS
            self._all_weights = int(self._processes.of_all("weights", np.array([float(sum(sizes))]))[0])
            if self._coins is None and self._whole.steps is not None:
                coins = plan_coins(self.noise, steps=self._whole.steps, weights=self._all_weights).coins
            self._sizes, self._names, self._joins_rows = sizes, names_of(gradients), rows
            summed = partial(self._processes.of_all, "weights")
            shares = self._processes.shares
            self._observer = StepObserver(self.noise, shapes, coins, self._directions_rng, shares=shares, summed=summed)
            self._places = Places(sizes, self._observer.directions.place)
        require(sizes == self._sizes, "gradients must have the same sizes in each step", sizes=sizes[:5])
        self.participates()

    def _join_base(self, base: Floats) -> None:
        """Record the sum without canaries at the places, in clips, of this process."""
        self._joined = replace(self._joined, base=self._processes.of_all("records", base))

    def _join_examples(self, gradients: Any) -> Any:
        """Append an example for each canary, far beyond the clip if its coin lets it in."""
        if self._processes.share == "weights":
            raise InputError("gradients of examples have all weights: give the shard of the sum of clipped gradients")
        whole = leaves(gradients)
        count = int(whole[0].shape[0])
        self._begin(gradients, [shape[1:] for shape in shapes_of(gradients)], rows=True)
        matrix = np.concatenate([numpy_of(leaf.reshape(count, -1)) for leaf in whole], axis=1)
        self._joined = replace(
            self._joined, base=self._processes.of_all("records", self._steps.clipped_sum(matrix / self.clip))
        )
        if not self._processes.adds_canaries:
            return gradients
        added = self._joined.coins[:, None] * self.clip * self._steps.rows(self._weights)
        parts = np.split(added, np.cumsum(self._sizes)[:-1], axis=1)
        return like(gradients, [with_examples(leaf, part) for leaf, part in zip(whole, parts, strict=True)])

    def _suspects(self) -> tuple[Suspect, ...]:
        """Return what the steps, the batches and the account point to."""
        model, by_process = self._steps.model, None
        if self._processes.share == "weights":
            sizes = np.zeros(self._processes.count)
            sizes[self._processes.rank] = math.sqrt((model.noise**2).mean()) / self.noise.deviation
            by_process = self._processes.summed(sizes)
        steps = suspects(model, self._names, rows=self._joins_rows, by_process=by_process)
        remarks = []
        if self._batches and self._records is not None:
            remarks = repeated_in_batches(self._batches)
            if isinstance(self.noise, MatrixMechanism):
                remarks += participation_remarks(self._batches, self.noise.participations, self.noise.separation)
            elif not remarks:
                remarks = of_batches(self._batches, self._records).remarks(self._whole.sampling_rate)
        account = [Suspect(Part.ACCOUNTING, text) for text in self._whole.overspent(self.noise, self.step)]
        return (*steps, *(Suspect(Part.SAMPLING, remark) for remark in remarks), *account)

    def _is_of_claim(self, suspect: Suspect) -> bool:
        """True if a suspect contradicts the claim of the whole training, or the participation that the noise states."""
        sampled = self._whole.claim is not None and self._whole.sampling_rate is not None
        of_sampling = suspect.part is Part.SAMPLING and (sampled or isinstance(self.noise, MatrixMechanism))
        return of_sampling or suspect.part is Part.ACCOUNTING

    def _answer(self, evidence: StepScores) -> TrainingResult:
        curve = self.noise.curve(0)
        delta = self._whole.delta
        claim = Claim.of(curve, relation=Relation.ADD_REMOVE, delta=delta)
        estimator = CoinAverages(delta=delta, confidence=CONFIDENCE)
        tally = estimator.tally(evidence)
        if not self.noise.is_independent:
            mu = np.array([self.noise.weights(step)[0] for step in range(self.step)])
            tally = replace(tally, relative=mu / mu[0])
        bound = estimator.find([tally])
        claimed = curve.delta(0.0)
        everything = estimator.find([replace(tally, share=np.ones_like(tally.share))])
        factor = detectable_noise(claimed, evidence.coins, tally.share.size)
        parts = self._suspects()
        test = Test(
            name=self.name,
            claimed=claim,
            compared=ConvertedClaim(claim),
            finding=bound,
            p_value=tally.p_value(claimed),
            sensitivity=Sensitivity(factor=factor, maximum=everything, helps="more steps, or more `coins`"),
            noise=None if isinstance(self.noise, LaplaceNoise) else self._steps.form,
            meaning_for_whole=self._whole.sentences(self.noise),
            differs_from_claim="; ".join(each.measured for each in parts if self._is_of_claim(each)),
        )
        test = test.at_confidence_of(replace(estimator, confidence=SURE).find([tally]))
        joined = int(evidence.truth.sum())
        change = Change(
            joined / self.step,
            self.noise.deviation * math.sqrt(self._all_weights),
            self.divisor if self.divisor > 1 else None,
        )
        notes = [f"The trained model was changed by the audit: {joined:,} canaries joined its steps. {change}"]
        if skipped := self._steps.skipped:
            notes.append(f"{skipped:,} of {self.step:,} steps were not observed; their coins count as guessed wrong")
        return TrainingResult(self.name, test, evidence, tuple(notes), parts)


@dataclass(frozen=True)
class _JoinedStep:
    """A step whose coins are tossed."""

    coins: Flags
    base: Floats | None = None  # sum without canaries at the places of the directions, in clips; None before the join


@dataclass(frozen=True)
class _WholeTraining:
    """Claim of the whole training."""

    claim: Claim | None
    sampling_rate: float | None
    steps: int | None

    @classmethod
    def of(cls, claim: object, sampling_rate: float | None, steps: int | None) -> _WholeTraining:
        rate_fits = sampling_rate is None or 0 < sampling_rate <= 1
        require(rate_fits, "sampling_rate must be in (0, 1]", sampling_rate=sampling_rate)
        require(steps is None or steps >= 1, "steps must be >= 1", steps=steps)
        return cls(None if claim is None else parse_claim(claim, Relation.ADD_REMOVE), sampling_rate, steps)

    @property
    def delta(self) -> float:
        """Delta of the claim, in (0, 1)."""
        return DELTA if self.claim is None else self.claim.delta or DELTA

    def sentences(self, noise: StepNoise) -> tuple[str, ...]:
        """Return the claim of the training, the cost of its steps by the accountant, and the tested parts."""
        claim = self.claim
        first = f"claimed {noise} in each step"
        if claim is not None:
            first = f"claimed epsilon {claim.epsilon:g} at delta={claim.delta:g}, with {noise} in each step"
        tested = "tested: noise and clipping of the steps; not the accountant nor the data pipeline"
        _, spent = self._spent(noise, self.steps)
        return (first, f"by the accountant, {spent}", tested) if spent else (first, tested)

    def overspent(self, noise: StepNoise, steps: int) -> tuple[str, ...]:
        """Return a sentence if the steps so far, or those planned, spend more than is claimed."""
        claim = self.claim
        if claim is None or not claim.delta:
            return ()
        epsilon, spent = self._spent(noise, max(steps, self.steps or 0))
        return (f"{spent}, and {claim.epsilon:g} is claimed",) if epsilon > claim.epsilon * (1 + OVERSPENT) else ()

    def _spent(self, noise: StepNoise, steps: int | None) -> tuple[float, str]:
        """Return the epsilon that steps spend by the accountant, with a sentence; 0 and "" if it is not known."""
        if not isinstance(noise, GaussianNoise) or self.sampling_rate is None or steps is None:
            return 0.0, ""
        epsilon = SubsampledGaussian(noise.multiplier, self.sampling_rate, steps).epsilon(self.delta)
        rate = f"at rate {self.sampling_rate:g}"
        return epsilon, f"{steps:,} such steps {rate} spend epsilon {epsilon:.3g} at delta={self.delta:g}"
