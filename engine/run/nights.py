"""A check whose evidence grows from night to night: a weak leak is found over weeks, at a fixed error.

Each night makes new calls with a seed of its own, and bets on them (`estimators/two_world/nights.py`). What the bets
won stands in one line of a file; all lines of the same code, claim and settings multiply. Half of the error is theirs;
the other half is that of the check which each night is by itself: the n-th night has 1 / n - 1 / (n + 1) of it.
So code that keeps its claim is refuted with probability at most the error, in whichever of all nights.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.dataset as pads

from dpaudit.actors.fingerprint import fingerprint
from dpaudit.actors.seed import Seed
from dpaudit.engine.data.partition import loaded_rows
from dpaudit.engine.games.functions.game import RowFunctionGame
from dpaudit.engine.planning.asked_twice import Memory, as_given, look_for_memory
from dpaudit.engine.reading.joint import JointVerdict
from dpaudit.engine.reading.result import AuditResult
from dpaudit.engine.reading.run_report import Report
from dpaudit.engine.reading.stated_values import StatedValue
from dpaudit.engine.reading.verdict import Verdict
from dpaudit.engine.report.bounds_file import write_bounds
from dpaudit.engine.report.page import write_page
from dpaudit.engine.run.run_folder import held, opened, place_of
from dpaudit.engine.spec.audit_spec import MAX_SEED, AuditSpec, slug
from dpaudit.errors import InputError, SpecError, require, shortened
from dpaudit.estimators.scores import Scores
from dpaudit.estimators.two_world import nights as bets
from dpaudit.mechanisms.compute import Compute
from dpaudit.plain_files import bytes_of, opened_in_place

_MOST_PAIRS = 2**53  # of calls that a night can have bet on
_FORM = 1
"""Of a line. What bets are made, and so what its counts mean, is part of it."""


@dataclass(frozen=True)
class _Night:
    """A line of the file that is about the same code, claim and settings."""

    seed: int
    error: float  # that all nights had together
    verdict: str
    won: Mapping[str, bets.Won]  # by the name of a test, how its bets went

    @classmethod
    def read(cls, line: StatedValue) -> _Night:
        """Read a line.

        Raises: SpecError or ValueError for what no night can have written.
        """
        won, like = {}, bets.Won.nothing()
        for name in line["won"].names():
            bet = line["won"][name]
            pairs = bet["pairs"].whole(0, _MOST_PAIRS)
            hits, alarms = (
                np.array([row.wholes(0, pairs) for row in bet[part].items()], np.int64) for part in ("hits", "alarms")
            )
            if not hits.shape == alarms.shape == like.hits.shape:
                raise ValueError("counts that no bets can have had")
            won[name] = bets.Won(hits, alarms, pairs)
        error = line["error"].number(0, 1)
        return cls(line["seed"].whole(0, MAX_SEED - 1), error, line["verdict"].one_of(Verdict).value, won)


@dataclass(frozen=True)
class Nights:
    """What all nights so far say together.

    Attributes:
        nights: How many there were, this one included.
        tonight: By what this night has multiplied the evidence, >= 0.
        evidence: All nights together, >= 0; of code that keeps its claim it has mean at most 1.
        needed: The evidence that refutes the claim.
        refuted: In which night the claim was refuted; 0 where it was in none.
        file: Where the nights stand.
        said: What else is to be known of this night; "" where nothing is.
    """

    nights: int
    tonight: float
    evidence: float
    needed: float
    refuted: int
    file: str
    said: str = ""

    @property
    def line(self) -> str:
        """For a reader."""
        nights = "1 night" if self.nights == 1 else f"{self.nights} nights"
        told = f"evidence of {nights}: {_plain(self.evidence)}, {_plain(self.needed)} refutes the claim"
        return f"{told}; this night: times {_plain(self.tonight)}{f'; {self.said}' if self.said else ''}"


def _plain(number: float) -> str:
    return f"{number:.2g}" if number < 100 else f"{number:,.0f}" if number < 1e6 else f"{number:.1e}"


@dataclass(frozen=True, eq=False)
class OverNights(JointVerdict):
    """The verdict of a night's check, and of all nights together."""

    over: Nights | None = None
    memory: Memory | None = None  # looked for where all nights refute the claim, and this one by itself does not

    @property
    def verdict(self) -> Verdict:
        tonight = super().verdict
        if self.over is None or not self.over.refuted or tonight is Verdict.VIOLATION:
            return tonight
        return Verdict.UNDECIDED if self.memory is not None and self.memory.carried else Verdict.VIOLATION

    @property
    def headline(self) -> str:
        if self.over is None or not self.over.refuted or super().verdict is Verdict.VIOLATION:
            return super().headline
        if self.memory is not None and self.memory.carried:
            return f"all nights together: {self.memory.words}"
        if self.over.refuted < self.over.nights:
            return f"refuted in night {self.over.refuted} of {self.over.nights}, and neither code nor claim has changed"
        told = f"evidence {_plain(self.over.evidence)}, {_plain(self.over.needed)} refutes the claim"
        return f"{self.over.nights} nights together: {told}"

    @property
    def how_sure(self) -> str:
        said = [] if self.over is None else [self.over.line]
        if super().verdict is not self.verdict and self.over is not None:
            return "; ".join([f"{100 * (1 - 2 / self.over.needed):.5g} % confidence over all nights", *said])
        return "; ".join([super().how_sure, *said])

    def to_dict(self) -> dict[str, Any]:
        """Values for JSON."""
        return super().to_dict() | ({} if self.over is None else {"nights": asdict(self.over)})


@dataclass(frozen=True, eq=False)
class Tonight:
    """A check that goes on with the evidence of earlier nights.

    Attributes:
        spec: What is run tonight.
        file: Where the nights stand, in lines of JSON.
        of: What all its nights have in common: a digest of code, claim and settings.
        error: What all nights have together.
        given: The mechanism before any call, for a look for memory.
    """

    spec: AuditSpec
    file: Path
    of: str
    error: float
    given: bytes

    @classmethod
    def after(cls, spec: AuditSpec, evidence: str | Path, seed: int | None) -> Tonight:
        """The check of a spec, as the next night of a file.

        Args:
            spec: A check of a function on rows; its confidence is that of all nights together.
            evidence: The file, made where it is not there; or a folder, in which each check has one.
            seed: Tonight's; None: one that no night had.
        Raises: SpecError for a check of anything but a function on rows; InputError for a file that holds other things,
            and for code that cannot be read.
        """
        if not all(isinstance(audit.game, RowFunctionGame) for audit in spec.audits):
            raise SpecError("evidence over nights must be that of a function on rows: give `schema`, or leave it out")
        require(spec.run.keep_scores, "evidence over nights needs scores: leave keep_scores out", keep_scores=False)
        first = spec.audits[0]
        names = tuple(audit.name for audit in spec.audits)
        found = fingerprint((_FORM, first.mechanism, first.effective_claim(), first.data, names))
        unseen = [why for code in found.own for why in code.unseen]
        if unseen:
            raise InputError(
                f"code must be readable, so that nights of the same code add up: {shortened(unseen[0])}; put the "
                "function into a module"
            )
        file = Path(evidence)
        file = file / f"{slug(spec.name)}.jsonl" if file.is_dir() else file
        made = cls(spec, file, found.digest[:16], 1 - spec.confidence, as_given(first.mechanism))
        nights = made._nights()
        used, chosen = {night.seed for night in nights}, seed is None
        while seed is None or (chosen and seed in used):
            seed = secrets.randbelow(2**31)
        number = [night.seed for night in nights].index(seed) if seed in used else len(nights)
        own = made.error / 2 / ((number + 1) * (number + 2))
        return replace(made, spec=replace(spec, seed=seed, confidence=1 - own))

    def _nights(self) -> list[_Night]:
        """Those of the file that are about the same thing, in order."""
        if not self.file.exists():
            return []
        nights = []
        for number, line in enumerate(bytes_of(self.file).decode("utf-8", "replace").splitlines(), 1):
            try:
                night = StatedValue.read(line.encode(), f"line {number}")
                if night["of"].text() == self.of:
                    nights.append(_Night.read(night))
            except (ValueError, SpecError) as err:
                raise InputError(
                    f"line {number} of {shortened(self.file)} must be a night of a check, got {shortened(line, 60)!r}; "
                    "take it out, or name another file"
                ) from err
        return nights

    def counted(self, report: Report, place: str | Path) -> Report:
        """The report of tonight's run with the verdict of all nights; a line is added to the file.

        A seed that a night had already is counted once.
        """
        assert report.joint is not None
        tonight = _Night(self.spec.seed, self.error, str(report.joint.verdict), _won(report.joint))
        said = "calls failed: this night is not counted" if not tonight.won else ""
        points = self._points(report.results)
        self.file.parent.mkdir(parents=True, exist_ok=True)
        descriptor = opened_in_place(self.file, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        with open(descriptor, "ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            nights = self._nights()
            if tonight.seed in {night.seed for night in nights}:
                said = f"seed {tonight.seed} is not new, and was not counted again"
            else:
                nights.append(tonight)
            path = self._path(nights, points)
            over = self._over(nights, path, said)
            joint = self._joint(report.joint, over)
            if nights[-1] is tonight:
                file.write(self._line(replace(tonight, verdict=str(joint.verdict)), over).encode())
        told = replace(report, joint=joint)
        with opened(place_of(place)) as folder, held(folder):
            write_bounds(told, folder)
            write_page(told, folder, draw=self.spec.run.figures)
        return told

    def _points(self, results: Sequence[AuditResult]) -> dict[str, tuple[bets.Point, ...]]:
        """What each test bets against; one that was not played tonight has the claim of the others."""
        claims = {result.name: result.compared.claim for result in results}
        usual = next(iter(claims.values()))
        return {audit.name: bets.points_of(claims.get(audit.name, usual)) for audit in self.spec.audits}

    def _path(self, nights: Sequence[_Night], points: Mapping[str, Sequence[bets.Point]]) -> list[float]:
        """Log of the evidence after each night."""
        sums, path = dict.fromkeys(points, bets.Won.nothing()), []
        for night in nights:
            sums = {name: won + night.won.get(name, bets.Won.nothing()) for name, won in sums.items()}
            path.append(bets.log_evidence([(won, points[name]) for name, won in sums.items()]))
        return path

    def _over(self, nights: Sequence[_Night], path: Sequence[float], said: str) -> Nights:
        needed = 2 / self.error
        refuting = [
            number
            for number, (night, reached) in enumerate(zip(nights, path, strict=True), 1)
            if reached >= math.log(needed) or (night.verdict == Verdict.VIOLATION and night.error <= self.error)
        ]
        before = path[-2] if len(path) > 1 else 0.0
        return Nights(
            nights=len(nights),
            tonight=math.exp(min(700.0, path[-1] - before)),
            evidence=math.exp(min(700.0, path[-1])),
            needed=needed,
            refuted=refuting[0] if refuting else 0,
            file=str(self.file),
            said=said,
        )

    def _joint(self, joint: JointVerdict, over: Nights) -> OverNights:
        memory, first = None, self.spec.audits[0]
        if over.refuted and joint.verdict is not Verdict.VIOLATION:
            rows = loaded_rows(first.data, self.spec.seed)
            seed = Seed(self.spec.seed).child("memory over nights")
            memory = look_for_memory(first.mechanism, self.given, rows, Compute(), seed=seed)
        return OverNights(**vars(joint), over=over, memory=memory)

    def _line(self, night: _Night, over: Nights) -> str:
        won = {
            name: {"hits": one.hits.tolist(), "alarms": one.alarms.tolist(), "pairs": one.pairs}
            for name, one in night.won.items()
        }
        content = {
            "of": self.of,
            "check": self.spec.name,
            "night": over.nights,
            "ended": datetime.now(UTC).isoformat(timespec="seconds"),
            "seed": night.seed,
            "error": night.error,
            "verdict": night.verdict,
            "tonight": over.tonight,
            "evidence": over.evidence,
            "won": won,
        }
        return json.dumps(content) + "\n"


def _won(joint: JointVerdict) -> dict[str, bets.Won]:
    """How the bets on the fresh calls of each test went; none of one that lost calls to a failure of its own."""
    found: dict[str, bets.Won] = {}
    for test in joint.tests:
        played = [test, *([joint.confirmations[test.name]] if test.name in joint.confirmations else [])]
        if not any(one.finding is None or one.failures for one in played):
            found[test.name] = sum((bets.Won.on(_scores(one)) for one in played), bets.Won.nothing())
    return found


def _scores(result: AuditResult) -> Scores:
    table = pads.dataset(result.evidence, format="parquet").to_table(columns=["score", "truth", "canary"])
    columns = {name: table[name].to_numpy() for name in table.column_names}
    return Scores(columns["score"], columns["truth"], canary=columns["canary"])
