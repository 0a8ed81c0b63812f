"""False positives on honest mechanisms, and detections of real leaks, by every game's usual estimator and each proxy.

    python -m benchmarks.false_violations RUNS.jsonl [--only SCENE ...] [--seeds 400] [--write]

An audit runs the units of a `dpaudit run` plan in sequence in this process and reads the verdict. It skips files,
figures and ceilings. Ceilings only separate INCONCLUSIVE from NO VIOLATION FOUND, which count as one verdict here. The
honest mechanisms leak exactly their claims (`benchmarks/exact_mechanisms.py`): a VIOLATION is a false positive, allowed
in at most 5 % of the audits. Audits have one replay; several would be combined by their median, each with half the
error. Audits of one seed and scene share data and training, so the cells of a scene are dependent, and the audits of a
cell are independent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa
from scipy.special import betaincinv
from scipy.stats import norm

from benchmarks.campaign import campaign
from benchmarks.exact_mechanisms import (
    Drifting,
    Forgets,
    KeepsAttribute,
    NoisyCount,
    Opposites,
    Powered,
    Recognises,
    Records,
    Remembers,
)
from dpaudit import Audit, AuditSpec, Claim, RunOptions
from dpaudit.actors.fingerprint import read_once
from dpaudit.actors.unit import Inputs
from dpaudit.claims import GaussianDP, Relation
from dpaudit.engine.answer.gather import read_audit
from dpaudit.engine.answer.result import AuditResult
from dpaudit.engine.data.generated import GaussianMixture
from dpaudit.engine.data.partition import Partition
from dpaudit.engine.games.one_run.attribute_inference import AttributeInference
from dpaudit.engine.games.one_run.label_inference import LabelCanaries, LabelInference
from dpaudit.engine.games.one_run.membership import Membership, ObservationalMembership
from dpaudit.engine.games.two_world.canaries import GivenRow
from dpaudit.engine.games.two_world.game import IndMia, Mia
from dpaudit.engine.planning.plan import keys_of, make_plan
from dpaudit.mechanisms.labels.randomized_response import RandomizedResponse

CANARIES, HELD_OUT, REFERENCE, PAIRS, TRIALS = 8_000, 400, 60, 2_000, 256
FACTORS = {"exact": 1.0, "x 1.1": 1.1, "x 1.2": 1.2, "x 1.3": 1.3}
FITTED = f"fitted to {REFERENCE} rows"
PROXIES: dict[str, Any] = {name: Powered(factor) for name, factor in FACTORS.items()} | {FITTED: "model"}
FRESH = {name: Records(spread=factor) for name, factor in FACTORS.items()} | {FITTED: Records(learned_from=REFERENCE)}
MU = 2 * float(norm.ppf(1 / (1 + math.exp(-1))))
"""Parameter of the Gaussian curve that touches the curve of randomised response with epsilon = 1."""
ONE_REPLAY: dict[str, Any] = {"replays": 1}


def claims(relation: Relation, mu: float = MU) -> dict[str, Claim]:
    """Return a claim of each kind that holds for a mechanism with epsilon = 1; the last is a curve."""
    return {
        "1": Claim(1.0, relation=relation),
        "1 at 1e-5": Claim(1.0, 1e-5, relation=relation),
        f"{mu:.3g}-GDP": Claim.of(GaussianDP(mu), relation=relation, delta=1e-5),
    }


def shares(canaries: int, held_out: int, reference: int = REFERENCE) -> tuple[int, Partition]:
    """Return the number of rows and their partition."""
    rows = canaries + held_out + reference
    return rows, Partition(target=canaries / rows, reference=reference / rows, test=held_out / rows)


@dataclass(frozen=True)
class Scene:
    """Audits that share data and trainings.

    Attributes:
        audits: Function that returns the audits; their names are the rows of the table.
        most: Maximum number of audits of a cell; None for the requested number.
    """

    audits: Callable[[], tuple[Audit, ...]]
    most: int | None = None

    def verdicts(self, seed: int) -> dict[str, str]:
        """Return the verdict of each audit by name."""
        return {name: result.verdict.value for name, result in self.results(seed).items()}

    def results(self, seed: int) -> dict[str, AuditResult]:
        """Return the result of each audit by name."""
        spec = AuditSpec(self.audits(), seed=seed, run=RunOptions(runner="in-process", keep_scores=False))
        plan = make_plan(spec)
        unplayed = {key for entry in plan.audits for key in (*entry.ceilings, *keys_of(entry.game.ceiling))}
        tables: dict[str, pa.Table] = {}
        for unit in plan.units:
            if unit.key not in unplayed:
                shared = {name: plan.shared[name] for name in unit.shared}
                inputs = Inputs(shared, {key: tables[key] for key in unit.needs})
                tables[unit.key] = unit.task.run(inputs, unit.resources.compute())
        store = cast(Any, Finished(tables))
        return {entry.audit.name: read_audit(entry, tables.keys(), store) for entry in plan.audits}


@dataclass(frozen=True)
class Finished:
    """The tables of finished units, in memory."""

    tables: dict[str, pa.Table]

    def read(self, key: str) -> pa.Table:
        """Return one unit's table."""
        return self.tables[key]

    def schema(self, key: str) -> pa.Schema:
        """Return the schema of one unit's table."""
        return self.tables[key].schema


def labels(distribution: str, mechanism: Any) -> Callable[[], tuple[Audit, ...]]:
    """Return audits of label inference at epsilon = 1."""

    def audits() -> tuple[Audit, ...]:
        rows, split = shares(CANARIES, HELD_OUT)
        data, game = GaussianMixture(rows=rows), LabelInference(**ONE_REPLAY)
        return tuple(
            Audit(
                mechanism,
                data,
                game,
                proxy,
                split=split,
                claim=claim,
                name=f"label-inference, {distribution} | {claim_name} | {off}",
            )
            for claim_name, claim in claims(Relation.LABEL).items()
            for off, proxy in PROXIES.items()
        )

    return audits


def leaking() -> tuple[Audit, ...]:
    """Return audits of label inference at epsilon = 2.94, with a claim of 1."""
    rows, split = shares(4_000, 4_000)
    data, game = GaussianMixture(rows=rows, classes=10), LabelInference(**ONE_REPLAY)
    return tuple(
        Audit(
            RandomizedResponse(2.94), data, game, proxy, split=split, claim=Claim(1.0),
            name=f"label-inference, released labels, 10 classes, 4,000 held-out rows, really 2.94 | 1 | {off}",
        )
        for off, proxy in PROXIES.items()
    )  # fmt: skip


def attributes() -> tuple[Audit, ...]:
    """Return audits of attribute inference at epsilon = 1."""
    rows, split = shares(CANARIES, HELD_OUT)
    game = AttributeInference(columns=("2",), **ONE_REPLAY)
    return tuple(
        Audit(KeepsAttribute(), Records(rows), game, proxy, split=split, name=f"attribute-inference | 1 | {off}")
        for off, proxy in PROXIES.items()
    )


def fresh_points() -> tuple[Audit, ...]:
    """Return audits of observational membership at epsilon = 1, with exact and wrong generators of fresh points."""
    rows, split = shares(PAIRS, 0)
    mechanism = Recognises(relation=Relation.REPLACE)
    return tuple(
        Audit(
            mechanism, Records(rows), ObservationalMembership(fresh=fresh, **ONE_REPLAY), Powered(), split=split,
            name=f"observational-membership | 1 | {off}",
        )
        for off, fresh in FRESH.items()
    )  # fmt: skip


def planted() -> tuple[Audit, ...]:
    """Return audits of label canaries at epsilon = 1, which need no proxy."""
    rows, split = shares(CANARIES, 0)
    data, game = GaussianMixture(rows=rows), LabelCanaries(**ONE_REPLAY)
    return tuple(
        Audit(
            RandomizedResponse(1.0), data, game, split=split, claim=claim, name=f"label-canaries | {claim_name} | any"
        )
        for claim_name, claim in claims(Relation.LABEL).items()
    )


def members() -> tuple[Audit, ...]:
    """Return audits of membership in one training at epsilon = 1, which need no proxy."""
    rows, split = shares(CANARIES, 0)
    return tuple(
        Audit(
            Recognises(), Records(rows), Membership(), split=split, claim=claim, name=f"membership | {claim_name} | any"
        )
        for claim_name, claim in claims(Relation.ADD_REMOVE).items()
    )


def trials(name: str) -> Callable[[], tuple[Audit, ...]]:
    """Return audits of independent trainings at exactly epsilon = 1 or mu = 1, with the game's relation."""
    everything = Partition(target=1.0, reference=0.0, test=0.0, order="given")

    def audits() -> tuple[Audit, ...]:
        fields: dict[str, Any] = {"trials": TRIALS, "stack": TRIALS, "population": 0}
        game: Any = IndMia(canary=GivenRow((0,)), **fields) if name == "ind-mia" else Mia(**fields)
        planned = []
        for claim_name, claim in claims(game.traits.relation, mu=1.0).items():
            mechanism = NoisyCount(mu=0.0 if claim.is_point else 1.0)
            planned.append(
                Audit(
                    mechanism,
                    Opposites(40),
                    game,
                    attack="loss",
                    split=everything,
                    claim=claim,
                    name=f"{name} | {claim_name} | none",
                )
            )
        return tuple(planned)

    return audits


def large_powered() -> tuple[Audit, ...]:
    """Return audits with many canaries, few held-out rows and a wrong proxy."""
    rows, split = shares(48_000, 1_200, 0)
    data, game = GaussianMixture(rows=rows), LabelInference(**ONE_REPLAY)
    name = "label-inference, released labels, 48,000 canaries, 1,200 held-out rows | 1 | x 1.2"
    return (Audit(RandomizedResponse(1.0), data, game, Powered(1.2), split=split, name=name),)


def large_fitted() -> tuple[Audit, ...]:
    """Return audits with the usual proxy, fitted to few rows of many dimensions."""
    data = GaussianMixture(rows=50_000, dimensions=20)
    split = Partition(target=0.97, reference=0.005, test=0.025)
    name = "label-inference, released labels, 48,500 canaries, 1,250 held-out rows, d = 20 | 1 | fitted to 250 rows"
    return (Audit(RandomizedResponse(1.0), data, LabelInference(**ONE_REPLAY), split=split, name=name),)


def uncontrolled() -> tuple[Audit, ...]:
    """Return audits without held-out rows of a mechanism that ignores its data."""
    rows, split = shares(CANARIES, 0)
    game = AttributeInference(columns=("2",), **ONE_REPLAY)
    mechanism = Forgets(Relation.REPLACE)
    name = "attribute-inference, mechanism looks at nothing, `split.test: 0` | 0.1 | "
    return tuple(
        Audit(mechanism, Records(rows), game, proxy, split=split, name=name + off) for off, proxy in PROXIES.items()
    )


def drifting() -> tuple[Audit, ...]:
    """Return audits on rows in order of time, with a period of noisy labels."""
    split = Partition(target=0.3, reference=0.4, test=0.3, order="given")
    data, mechanism = Drifting(20_000), Forgets(Relation.REPLACE)
    name = (
        "observational-membership, mechanism looks at nothing, sorted rows that drift | 0.1 | trained on earlier rows"
    )
    return (Audit(mechanism, data, ObservationalMembership(**ONE_REPLAY), split=split, name=name),)


LARGE, LEAKING = 20, 40
SCENES: dict[str, Scene] = {
    "released labels": Scene(labels("released labels", RandomizedResponse(1.0))),
    "a model's answers": Scene(labels("a model's answers", Remembers())),
    "attributes": Scene(attributes),
    "fresh points": Scene(fresh_points),
    "planted labels": Scene(planted),
    "members": Scene(members),
    "ind-mia": Scene(trials("ind-mia")),
    "mia": Scene(trials("mia")),
    "leaking": Scene(leaking, LEAKING),
    "large, powered": Scene(large_powered, LARGE),
    "large, fitted": Scene(large_fitted, LARGE),
    "uncontrolled": Scene(uncontrolled, LARGE),
    "drifting": Scene(drifting, LARGE),
}


def cases(seeds: int) -> Iterator[dict[str, Any]]:
    """Yield scenes and seeds; all scenes advance evenly."""
    for seed in range(seeds):
        yield from ({"scene": name, "seed": seed} for name, scene in SCENES.items() if seed < (scene.most or seeds))


def run(scene: str, seed: int) -> dict[str, Any]:
    """Return the verdicts of a scene by cell."""
    return {"verdicts": SCENES[scene].verdicts(seed)}


def groups(line: Mapping[str, Any]) -> Iterator[tuple[dict[str, str], str]]:
    """Yield the cells of a scene."""
    for cell, verdict in line["verdicts"].items():
        yield dict(zip(("game", "claim", "proxy"), cell.split(" | "), strict=True)), verdict


def columns(verdicts: Sequence[str]) -> dict[str, Any]:
    """Return the false positives with a limit of their rate, and the verdicts that stay open."""
    audits, wrong = len(verdicts), verdicts.count("VIOLATION")
    most = float(betaincinv(wrong + 1, audits - wrong, 0.95)) if wrong < audits else 1.0
    return {"VIOLATION": (str(wrong), f"at most {100 * most:.1f} %"), "UNDECIDED": str(verdicts.count("UNDECIDED"))}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the audits that are missing, and print the table."""
    with read_once():
        campaign(cases, run, columns, groups=groups, seeds=400, arguments=arguments)


if __name__ == "__main__":
    main()
