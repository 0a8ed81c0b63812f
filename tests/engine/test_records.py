"""Records that the attack guesses correctly too often: by known laws, in a real run, and in a foreign run folder."""

from __future__ import annotations

import json
import math
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray
from scipy.stats import binom

from dpaudit import Audit, AuditSpec, Claim, RunOptions, audit
from dpaudit.engine.answer.records import DEFAULTS, Records, benjamini_yekutieli, p_values
from dpaudit.engine.answer.run_report import Report
from dpaudit.engine.answer.stated_values import checksum_note
from dpaudit.engine.cli.main import main
from dpaudit.engine.request.audit_spec import slug
from dpaudit.engine.request.build import build
from dpaudit.engine.run.driver import report_again
from dpaudit.errors import AuditError, DataError, InputError, RunError, SpecError
from tests import nightly
from tests.nightly import nightly_games
from tests.own_mechanism import KeepsSomeRecords

EPSILON = 1.0
RATE = 0.1
GAME = {"name": "label-canaries", "replays": 1, "trainings": 60}


def likelihood(epsilon: float) -> float:
    """Return the maximum probability of a correct guess."""
    return math.exp(epsilon) / (1 + math.exp(epsilon))


def played(right: NDArray[np.float64], trainings: int, rng: np.random.Generator, replays: int = 1) -> pa.Table:
    """Return scores of an attack that knows the coin of record i with probability `right[i]`, drawn for each training.

    Replays of a training share its leak: the guesses of a record are correct in all of them or in none.
    """
    is_known = rng.random((trainings, right.size)) < right
    truth = rng.random((trainings, replays, right.size)) < 0.5
    score = np.where(is_known[:, None, :] == truth, 1.0, -1.0)
    replay, canary = np.divmod(np.arange(truth.size), right.size)
    return pa.table(
        {
            "score": score.ravel().astype(np.float32),
            "truth": truth.ravel(),
            "replay": replay.astype(np.int32),
            "canary": canary.astype(np.int32),
        }
    )


def records_of(table: pa.Table, **more: Any) -> Records:
    return Records.of("it", GAME | more.pop("game", {}), (EPSILON, 0.0), [table], **{"rate": RATE} | more)


def test_leaking_records_are_found_with_the_stated_false_discovery_rate() -> None:
    """20 leaking records, always guessed correctly, and 180 at the limit; false failure < 1e-6.

    Each game's share of wrong findings is in [0, 1] with a mean of at most `RATE`. By Hoeffding's inequality their
    mean over n games exceeds it by sqrt(log(1e6) / (2 n)) with probability <= 1e-6. A leaking record is always found
    here: 0.731^60 = 7e-9, far below the 0.1 / (200 x 5.9) x 20 that the last of them needs.
    """
    games, right = nightly_games(1_000), np.full(200, likelihood(EPSILON))
    right[:20] = 1.0
    wrong, unadjusted = [], []
    for seed in range(games):
        records = records_of(played(right, 60, np.random.default_rng(seed))).to_frame()
        assert set(range(20)) <= set(records.record[records.found])
        wrong.append((records.record[records.found] >= 20).mean())
        unadjusted.append((records.record[records.p_value <= RATE] >= 20).mean())
    most = RATE + math.sqrt(math.log(1e6) / (2 * games))
    assert np.mean(wrong) <= most
    assert np.mean(unadjusted) > most, "without the adjustment there are too many false findings"


@pytest.mark.parametrize("replays", [1, 5])
def test_honest_records_are_rarely_found(replays: int) -> None:
    """All records are at the limit, so any finding is wrong; games with one are at most as frequent as the rate."""
    games, right = 1_000 if nightly.on() else 100, np.full(100, likelihood(EPSILON))
    game = {"replays": replays, "trainings": 40}
    counts = [
        records_of(played(right, 40, np.random.default_rng(s), replays), game=game).selected for s in range(games)
    ]
    limit = binom.ppf(1 - 1e-6, games, RATE)
    assert np.count_nonzero(counts) <= limit
    # Planted defect: replays of one training count as if each had separate coins and noise.
    as_if = {"replays": 1, "trainings": 40 * replays}
    pooled = [
        records_of(played(right, 40, np.random.default_rng(s), replays), game=as_if).selected for s in range(games)
    ]
    assert replays == 1 or np.count_nonzero(pooled) > limit, "replays that share noise are not independent"


def test_p_values_of_replayed_trainings_are_valid() -> None:
    limit, trainings = 0.7, 30
    exact = p_values(np.arange(trainings + 1), 1, trainings, limit)
    assert np.allclose(exact, binom.sf(np.arange(-1, trainings), trainings, limit))
    assert np.all(exact >= binom.sf(np.arange(-1, trainings), trainings, limit))
    replayed = p_values(10 * np.arange(trainings + 1), 10, trainings, limit)
    assert np.all(replayed >= exact)
    assert replayed[-1] == pytest.approx(limit**trainings)
    assert np.all(np.diff(p_values(np.arange(301), 10, trainings, limit)) <= 1e-12), (
        "p-values fall with the number of correct guesses"
    )


def test_benjamini_yekutieli_equals_its_definition() -> None:
    p = np.sort(np.random.default_rng(3).random(50) ** 3)
    harmonic = sum(1 / i for i in range(1, 51))
    adjusted = benjamini_yekutieli(p)
    for rate in (0.01, 0.1, 0.5, 0.9):
        passing = [k for k in range(1, 51) if p[k - 1] <= k * rate / (50 * harmonic)]
        assert int((adjusted <= rate).sum()) == max(passing, default=0)


def test_missing_replays_count_as_wrong_guesses() -> None:
    table = played(np.ones(50), 60, np.random.default_rng(0))
    whole, half = records_of(table), records_of(table.slice(0, 30 * 50))
    assert set(whole.right) == {1.0}
    assert set(half.right) == {0.5}
    assert (whole.selected, half.selected) == (50, 0)


def test_without_a_claim_the_limit_is_chance_and_few_trainings_are_reported() -> None:
    table = played(np.ones(50), 60, np.random.default_rng(0))
    chance = Records.of("it", GAME, (math.inf, 0.0), [table])
    assert chance.limit == 0.5
    assert "against chance" in str(chance)
    few = records_of(table.slice(0, 5 * 50), game={"trainings": 5})
    assert few.selected == 0
    assert f"use `trainings: {few.min_trainings}`" in str(few)
    sufficient = table.slice(0, few.min_trainings * 50)
    single_record = pa.concat_tables([sufficient.slice(0, 0), sufficient.filter(pc.equal(sufficient["canary"], 0))])
    others = sufficient.filter(pc.greater(sufficient["canary"], 0))
    wrong = others.set_column(0, "score", pc.negate(others["score"]))
    for missing, expected in ((0, 1), (1, 0)):
        game = {"trainings": few.min_trainings}
        last = pc.less(single_record["replay"], few.min_trainings - missing)
        assert (
            records_of(pa.concat_tables([single_record.filter(last), wrong]).sort_by("replay"), game=game).selected
            == expected
        )
    assert Records.of("it", GAME, (EPSILON, 0.1), [table]).limit == pytest.approx((math.e + 0.1) / (math.e + 1))


CHANGES: list[Callable[[dict[str, Any]], None]] = [
    lambda columns: columns.update(replay=columns["replay"] + 1),
    lambda columns: columns.update(canary=columns["canary"] - 1),
    lambda columns: columns.update(canary=columns["canary"] * 0),
    lambda columns: columns.update(canary=columns["canary"] + 2_000_000_000),
    lambda columns: columns.update(score=columns["score"] * np.nan),
    lambda columns: columns.update(truth=columns["score"]),
    lambda columns: columns.update(replay=columns["score"]),
    lambda columns: columns.pop("canary"),
    lambda columns: columns.update({name: values[:0] for name, values in columns.items()}),
]


@pytest.mark.parametrize("change", CHANGES)
def test_tables_of_other_games_are_refused(change: Callable[[dict[str, Any]], None]) -> None:
    table = played(np.ones(50), 60, np.random.default_rng(0))
    columns = {name: table.column(name).to_numpy() for name in table.column_names}
    change(columns)
    with pytest.raises(DataError, match="must"):
        records_of(pa.table(columns))


@pytest.mark.parametrize(
    ("game", "claim", "more", "error"),
    [
        ({"replays": 0}, 1.0, {}, SpecError),
        ({"trainings": "many"}, 1.0, {}, SpecError),
        ({"trainings": True}, 1.0, {}, SpecError),
        *(({}, claim, {}, SpecError) for claim in (800.0, math.nan, -0.5, 1e308, -math.inf)),
        ({}, 1.0, {"rate": 1.0}, InputError),
        ({}, 1.0, {"top": 0}, InputError),
    ],
)
def test_invalid_numbers_are_refused(
    game: dict[str, Any], claim: float, more: dict[str, Any], error: type[AuditError]
) -> None:
    table = played(np.ones(50), 60, np.random.default_rng(0))
    with pytest.raises(error, match="must"):
        Records.of("it", GAME | game, (claim, 0.0), [table], **more)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Return a run of forty releases of labels; those of the first five records are released unchanged."""
    game = {"name": "label-canaries", "canaries": 60, "replays": 2, "trainings": 40}
    entry = Audit(KeepsSomeRecords(), {"name": "gaussian-mixture", "rows": 400}, game, name="<b>it</b>")
    options = RunOptions(runner="in-process", figures=False)
    return audit(AuditSpec((entry,), run=options), output=tmp_path_factory.mktemp("records") / "run", quiet=True)


def test_a_report_names_the_records_that_leak(report: Report) -> None:
    records = report.records(top=7)
    frame = records.to_frame()
    assert set(frame.record[frame.found]) == set(range(5))
    assert set(frame.record[:5]) == {0, 1, 2, 3, 4}
    assert frame.shape == (60, 6)
    assert len(str(records).splitlines()) == 1 + 1 + 7 + 2
    assert "<b>" not in records._repr_html_()


class KeepsAll:
    """A user mechanism that is no dataclass and has no registered name."""

    def __init__(self, epsilon: float) -> None:
        self.epsilon = epsilon

    def claim(self) -> Claim:
        return Claim(self.epsilon)

    def release(self, labels: NDArray[np.int64], *, classes: int, rng: np.random.Generator) -> NDArray[np.int64]:
        return labels


def test_records_of_an_audit_of_an_object_without_a_name(tmp_path: Path) -> None:
    """The audit has the default name, which the run folder must store."""
    game = {"name": "label-canaries", "replays": 1, "trainings": 20}
    entry = Audit(KeepsAll(1.0), {"name": "gaussian-mixture", "rows": 60}, game)
    report = audit(AuditSpec((entry,), run=RunOptions(runner="in-process", figures=False)), output=tmp_path, quiet=True)
    result = CliRunner().invoke(main, ["records", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert result.output.rstrip() == str(report.records())
    assert report_again(tmp_path, allow_code=True).results[0].name == "audit"


def test_an_attribute_that_cannot_be_stored_is_named() -> None:
    mechanism: Any = KeepsAll(1.0)
    mechanism.table = np.zeros(3)
    spec = AuditSpec((Audit(mechanism, {"name": "gaussian-mixture"}, GAME),))
    with pytest.raises(SpecError, match=r"audit: mechanism\.table must be a number, .*, got an object of ndarray"):
        spec.to_yaml()


def test_folders_of_audits_without_a_name_are_read() -> None:
    assert Records.selected_audit("audits: [{game: membership}]", None) == ("audit", {"name": "membership"})


def test_the_command_prints_the_same_and_runs_nothing(report: Report, tmp_path: Path) -> None:
    arguments = ["records", report.folder, "--csv", str(tmp_path / "all.csv"), "--html", str(tmp_path / "all.html")]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    assert result.output.rstrip() == str(report.records())
    assert len((tmp_path / "all.csv").read_text().splitlines()) == 61
    page = (tmp_path / "all.html").read_text()
    assert "Content-Security-Policy" in page
    assert "<b>" not in page


def test_a_foreign_folder_runs_no_code(report: Report, tmp_path: Path) -> None:
    folder = Path(report.folder)
    spec, scores = folder / "spec.yaml", folder / "scores" / slug("<b>it</b>")
    original = spec.read_text()
    try:
        for invalid_spec in (
            "a: &x [*x]",
            "audits: 3",
            "audits: [{name: [], game: {}}]",
            "!!python/object/apply:os.system [ls]",
        ):
            spec.write_text(invalid_spec)
            result = CliRunner().invoke(main, ["records", report.folder])
            assert result.exit_code == 2, (invalid_spec, result.output)
        spec.write_text(original)
        (scores / "99999.parquet").write_bytes(b"PAR1 is what this is not")
        assert CliRunner().invoke(main, ["records", report.folder]).exit_code == 2
        pq.write_table(pa.table({"score": [1.0]}), scores / "99999.parquet")
        assert CliRunner().invoke(main, ["records", report.folder]).exit_code == 2
    finally:
        spec.write_text(original)
        (scores / "99999.parquet").unlink(missing_ok=True)


def test_one_large_record_number_needs_little_memory() -> None:
    """Memory is limited by the size of the tables, not by the largest number."""
    table = played(np.ones(50), 60, np.random.default_rng(0))
    canary = table.column("canary").to_numpy() * 2_000_000 + 1_999_999
    tracemalloc.start()
    try:
        records = records_of(table.set_column(3, "canary", pa.array(canary)))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 50_000_000
    assert records.record.max() == 99_999_999
    assert records.record.size == records.selected == 50


def test_replays_of_any_lengths_are_guessed_separately() -> None:
    """Compared with the definition, replay by replay: rows in any order, many lengths, ties, one or two tables."""
    rng = np.random.default_rng(5)
    for _ in range(20):
        replays = 40
        lengths = rng.integers(1, 9, replays)
        replay = np.repeat(rng.permutation(replays), lengths)
        canary = np.concatenate([rng.choice(30, length, replace=False) for length in lengths])
        score, truth = np.round(rng.normal(size=replay.size), int(rng.integers(0, 3))), rng.random(replay.size) < 0.5
        order = rng.permutation(replay.size)
        score, truth, replay, canary = (values[order] for values in (score, truth, replay, canary))
        right = dict.fromkeys(canary.tolist(), 0)
        for number in range(replays):
            rows = replay == number
            low, high = np.quantile(score[rows], [0.1, 0.9], method="inverted_cdf")
            guess = score[rows] > np.clip(score[rows], low, high).mean()
            for record, hit in zip(canary[rows].tolist(), guess == truth[rows], strict=True):
                right[record] += int(hit)
        whole = pa.table({"score": score, "truth": truth, "replay": replay, "canary": canary})
        parts = [whole.filter(pc.less(whole["replay"], 17)), whole.filter(pc.greater_equal(whole["replay"], 17))]
        for tables in ([whole], parts):
            records = Records.of(
                "it", {"name": "label-canaries", "replays": 1, "trainings": replays}, (1.0, 0.0), tables
            )
            counted = dict(
                zip(records.record.tolist(), np.rint(records.right * replays).astype(int).tolist(), strict=True)
            )
            assert counted == right


def test_a_replay_in_two_tables_is_refused() -> None:
    table = played(np.ones(50), 60, np.random.default_rng(0))
    with pytest.raises(DataError, match="a record must have one score in a replay, but replay 7 has several"):
        Records.of("it", GAME, (EPSILON, 0.0), [table, table.filter(pc.equal(table["replay"], 7))])


def test_other_games_and_runs_without_scores_are_refused(report: Report) -> None:
    other = replace(report, spec=report.spec.replace("label-canaries", "label-inference"))
    with pytest.raises(SpecError, match="flips fresh coins for the same records: label-canaries or membership"):
        other.records()
    without_scores = replace(report, results=(replace(report.results[0], evidence=""),))
    with pytest.raises(RunError, match="no scores were stored"):
        without_scores.records()
    with pytest.raises(AuditError, match=r"the audit must be one of <b>it</b>, got 'other'"):
        report.records(audit="other")


def test_an_invalid_claim_in_the_file_is_refused_in_one_line(report: Report) -> None:
    folder = Path(report.folder)
    path, log = folder / "bounds.json", folder / "events.jsonl"
    before, events = path.read_bytes(), log.read_text()
    document = json.loads(before)
    document["results"][0]["compared_with"] = {"epsilon": "x"}
    try:
        path.write_text(json.dumps(document))
        log.write_text(events.replace(checksum_note(before), checksum_note(path.read_bytes())))
        result = CliRunner().invoke(main, ["records", report.folder])
        assert (result.exit_code, "compared_with.epsilon must be a number >= 0, got" in result.output) == (2, True)
    finally:
        path.write_bytes(before)
        log.write_text(events)


def test_the_games_have_the_assumed_default_replays() -> None:
    for name, replays in DEFAULTS.items():
        game = build("game", {"name": name})
        assert (game.replays, game.trainings) == (replays, 1)
