"""Check of a registered run by a stranger, who has neither model nor data: hashes, coins, counts and the answer."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpaudit.actors.events import EventStream
from dpaudit.actors.storage.store import UnitStore, decode_unit, encode_unit
from dpaudit.actors.unit import Unit
from dpaudit.actors.values import decode, encode
from dpaudit.consent import Consent, apply_consent, require_network
from dpaudit.engine.answer.stated_values import StatedValue
from dpaudit.engine.planning.plan import Plan, make_plan
from dpaudit.engine.request.loading import spec_from_file
from dpaudit.engine.run.driver import report_from_finished, run_missing
from dpaudit.engine.run.plan_record import as_json, plan_from_plain, plan_to_plain
from dpaudit.engine.run.policy import Policy
from dpaudit.engine.run.registration import (
    RECEIPT,
    Registration,
    entry_in,
    file_hash,
    public_facts,
    receipt_of,
    require_chain,
)
from dpaudit.engine.run.run_folder import consent_for, open_run_folder, place_of, read_spec
from dpaudit.errors import RunError, SpecError, shortened
from dpaudit.estimators.one_run.signed_scores import control_estimator
from dpaudit.estimators.scores import Scores, SharedOrders
from dpaudit.plain_files import read_bytes

COMPARED = ("name", "seed", "confidence", "joint", "results")
"""Fields of `bounds.json` that follow from registration and scores."""
UNKNOWN = (
    "that the scores came from the stated mechanism and data: `--replay`, with both at hand, runs them again",
    "earlier runs, registrations elsewhere, and the time of an entry, unless others keep or sign the registry",
    "what report.html and other pages say: `dpaudit report` writes them again from the numbers that were checked",
)
"""Facts that no receipt shows."""


@dataclass(frozen=True)
class Verification:
    """An accepted run, in sentences."""

    checked: tuple[str, ...]  # what was checked
    unknown: tuple[str, ...]  # what the check cannot know
    verdicts: tuple[str, ...]  # bound of each audit, or of all together

    @property
    def lines(self) -> tuple[str, ...]:
        """The verification as text."""
        labelled = {"checked": self.checked, "unknown": self.unknown, "answer": self.verdicts}
        return ("ACCEPTED", *(f"  {label:<9} {text}" for label, texts in labelled.items() for text in texts))


def verify(
    run: str | Path,
    *,
    registry: str | Path | None = None,
    replay: bool = False,
    allow_code: bool = False,
    allow_network: bool = False,
    allow_files: bool = False,
) -> Verification:
    """Check a registered run, by the numbers of its folder alone, and return what was checked.

    Args:
        run: The run folder, a path or a URI.
        registry: The registry, which also has later entries; None for the entries that the folder keeps.
        replay: Run all units again and compare every bit; needs code and data. The `allow_` options are those of
            `resume`.
    Raises: RunError if the run is rejected, with the reason; SpecError if it has no registration.
    """
    with open_run_folder(place_of(run)) as folder:
        registration = Registration.load(folder)
        if registration is None:
            raise SpecError(f"{shortened(run)} has no registration. `dpaudit register SPEC --output RUN` comes first")
        checked = [_chain(registration, registry)]
        plan = _opened(registration)
        checked.append(f"seed {plan.spec.seed} and plan are those of the registration")
        store = UnitStore(folder / "units")
        checked.append(_units(plan, folder, store))
        counted, tossed, others = _scores(plan, store)
        checked.append(f"all counts follow from {counted:,} stored scores")
        unknown = [
            f"the coins of {name}: its game draws them after choices by the answers of the mechanism" for name in others
        ]
        checked += [f"{tossed:,} coins follow from the seed"] if tossed else []
        verdicts = _answer(plan, folder, run)
        checked.append("bounds, p-values and verdicts follow from the counts, to the last digit")
        _copies_of_scores(folder)
        if replay:
            consent = Consent(allow_code, allow_network, allow_files)
            checked.append(_replay(registration, folder, store, consent))
        return Verification(tuple(checked), (*unknown, *(UNKNOWN[1:] if replay else UNKNOWN)), verdicts)


def _chain(registration: Registration, registry: str | Path | None) -> str:
    """Check the entries; return which one is that of the run, and how many have the same claim."""
    require_chain(registration.entries, "the run's registration")
    lines, number = registration.entries, len(registration.entries)
    if registry is not None:
        lines = tuple(read_bytes(Path(registry)).decode("utf-8", "replace").splitlines())
        require_chain(lines, str(registry))
        if lines[:number] != registration.entries:
            raise _rejected("the registry does not have the entries that the run was registered after")
    same = [entry for entry in map(entry_in, lines) if _subject(entry) == _subject(registration.entry)]
    entries = f"{len(same)} of them for this claim" if len(same) > 1 else "no other for this claim"
    return f"registration {number} of {len(lines)}, {entries}, as {registration.entry.get('unit')!r} is the unit"


def _subject(entry: Any) -> set[tuple[str, str]]:
    """Return the mechanisms, without their fields, and the claims of an entry."""
    audits = StatedValue(entry, "the registry")["audits"].items()
    return {(str(audit["mechanism"].value).partition("(")[0], as_json(audit["claim"].value)) for audit in audits}


def _opened(registration: Registration) -> Plan:
    """Open the commitment and return the plan."""
    if registration.entry["commitment"] != registration.commitment:
        raise _rejected(
            "the registered commitment does not open: seed, claim, protocol or unit of privacy have changed"
        )
    plan = plan_from_plain(registration.plan)
    for name, value in {**public_facts(plan), "unit": registration.unit}.items():
        if as_json(registration.entry.get(name)) != as_json(value):
            raise _rejected(f"the entry of the registry states another {name} than the plan that it commits to")
    return plan


def _units(plan: Plan, folder: Path, store: UnitStore) -> str:
    """Check the files of all units, by the receipt."""
    if not (folder / RECEIPT).exists():
        raise _rejected("it has no receipt: `dpaudit resume` finishes the run")
    receipt, keys = StatedValue.parse(read_bytes(folder / RECEIPT), RECEIPT), {unit.key for unit in plan.units}
    current = receipt_of(folder, sorted(keys))
    differing = [name for name, value in current.items() if receipt[name].value != value]
    if differing:
        stated: Any = receipt[differing[0]].value
        files = current[differing[0]]
        changed = [name for name in files if stated.get(name) != files[name]] if isinstance(files, dict) else []
        which = f" ({shortened(', '.join(changed))})" if changed else ""
        raise _rejected(f"the files are not those of the receipt: {', '.join(differing)}{which}")
    finished, policy = set(current["units"]), Policy(plan, store)
    missing = keys - finished
    needed = missing - policy.skippable(finished, frozenset()) - policy.waiting(finished, frozenset())
    if missing_or_failed := needed | (missing & store.failures().keys()):
        raise _rejected(f"{len(missing_or_failed)} units have no result, whose scores could differ")
    follow_ups = {unit.key for entry in plan.audits for unit in (entry.state, entry.game.where) if unit is not None}
    if others := {path.stem for path in (folder / "units").glob("*.parquet")} - keys - follow_ups:
        raise _rejected(f"{len(others)} units belong to another run")
    return f"{len(finished)} units are those of the plan, each with its hash in the receipt"


def _copies_of_scores(folder: Path) -> None:
    """Check that the scores for other readers are files of units, whose hashes in the receipt were checked before."""
    of_units = set(StatedValue.parse(read_bytes(folder / RECEIPT), RECEIPT)["units"].value.values())
    for file in sorted((folder / "scores").glob("*/*.parquet")):
        if file_hash(file) not in of_units:
            raise _rejected(f"{file.relative_to(folder)} is not the file of a unit: its scores were changed")


def _scores(plan: Plan, store: UnitStore) -> tuple[int, int, list[str]]:
    """Count all scores again; return their number, that of coins, and the audits whose coins do not follow."""
    rows, tossed, others = 0, 0, dict[str, None]()
    for entry in plan.audits:
        game, estimator, name = entry.game, entry.audit.estimator, entry.audit.name
        control = control_estimator(estimator, len(game.control)) if game.control else estimator
        groups = zip(
            (game.evidence, game.ceiling, game.control), (entry.tallies, entry.ceilings, entry.controls), strict=True
        )
        counters = (estimator, estimator, control)
        for counter, (units, keys) in zip(counters, groups, strict=True):
            for unit, key in zip(units, keys, strict=True):
                if not store.has_file(unit.key) or not store.has_file(key):
                    continue
                table = store.read(unit.key)
                values = decode(table, SharedOrders if "further" in table.column_names else counter.evidence)
                counts = encode([counter.tally(value) for value in values], counter.tally_type)
                if not store.has_same_table(key, decode_unit(encode_unit(key, counts))):
                    raise _rejected(f"{name}: the counts of {unit.label!r} do not follow from its scores")
                rows += table.num_rows
                if units is not game.evidence:
                    continue
                coins = _coins(unit, values)
                if coins is None:
                    others |= {name: None} if issubclass(counter.evidence, Scores) else {}
                elif any(not np.array_equal(value.truth, each) for value, each in zip(values, coins, strict=True)):
                    raise _rejected(f"{name}: the coins of {unit.label!r} do not follow from the seed")
                tossed += sum(each.size for each in coins or ())
    return rows, tossed, list(others)


def _coins(unit: Unit, values: Sequence[Any]) -> list[Any] | None:
    """Return the coins of evidence by the seeds of its unit; None if they do not follow from seeds alone."""
    call: Any = unit.task
    if not hasattr(call.function, "coins"):
        return None
    arguments = {
        name: tuple({"function": each.task.function, **dict(each.task.arguments)} for each in value)
        if isinstance(value, tuple)
        else value
        for name, value in call.arguments
    }
    coins: list[Any] | None = call.function.coins(values, arguments)
    return coins


def _answer(plan: Plan, folder: Path, place: str | Path) -> tuple[str, ...]:
    """Compute the answer again and compare it with `bounds.json`."""
    from dpaudit.engine.report.page import bounds_json  # slow to import

    with tempfile.TemporaryDirectory() as temporary:
        report = report_from_finished(plan, Path(temporary), place, UnitStore(folder / "units"))
        again = json.loads(bounds_json(report))
    stored = StatedValue.parse(read_bytes(folder / "bounds.json"), "bounds.json")
    for name in COMPARED:
        if as_json(stored[name].value) != as_json(again[name]):
            raise _rejected(f"the stored answer differs from the one that follows from the scores: {name}")
    answers = [report.joint] if report.joint is not None else list(report.results)
    return tuple(answer.answer.headline for answer in answers)


def _replay(registration: Registration, folder: Path, store: UnitStore, consent: Consent) -> str:
    """Run all finished units again, with code and data, and compare every bit."""
    spec = read_spec(folder)
    with apply_consent(consent_for(spec, consent)), tempfile.TemporaryDirectory() as temporary:
        plan = make_plan(spec_from_file(spec))
        require_network(plan.spec, plan.price)
        if as_json(plan_to_plain(plan)) != as_json(registration.plan):
            raise _rejected("with the code and data at hand, its spec gives another plan")
        place, fresh = Path(temporary), UnitStore(Path(temporary) / "units")
        again = run_missing(plan, place, fresh, EventStream(), place / "scratch", time.monotonic()).finished
        finished = store.finished(unit.key for unit in plan.units)
        differing = [key for key in finished if key not in again or not store.has_same_table(key, fresh.read(key))]
        if differing:
            raise _rejected(f"{len(differing)} units give other results when run again")
    return f"{len(finished)} units were run again and gave the same bits"


def _rejected(why: str) -> RunError:
    return RunError(f"REJECTED: {why}")
