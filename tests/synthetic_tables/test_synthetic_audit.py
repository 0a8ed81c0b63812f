"""`dpaudit.synthetic`: three tables in, one verdict out; what a bad table or option leads to."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

import dpaudit
from dpaudit import Claim, Relation, SyntheticAudit, Validity, Verdict
from dpaudit.claims import ConvertedClaim
from dpaudit.engine.answer.record import Confirmation, Record, Verb
from dpaudit.engine.answer.verdict import decide
from dpaudit.engine.cli.main import main
from dpaudit.errors import AuditError, DataError
from dpaudit.registry import catalogue, load
from dpaudit.synthetic_tables.front_door import auditing, inputs
from dpaudit.synthetic_tables.front_door.result import GuessedPairs
from dpaudit.synthetic_tables.games.columns import encoded
from dpaudit.synthetic_tables.games.pairs import Canaries, paired
from dpaudit.synthetic_tables.games.split_control import SplitControl, SplitTest
from tests.loops import Cases

FEW_ATTACKS = ("copies", "nearest-neighbour")
Frames = tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Play two of the attacks, without the one that fits classifiers."""
    entries = {name: entry for name, entry in catalogue("table-attack").items() if name in FEW_ATTACKS}
    monkeypatch.setattr(auditing, "catalogue", lambda kind: entries)


def people(count: int, rng: np.random.Generator) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "age": rng.normal(40, 10, count).round(1),
            "pay": np.where(rng.random(count) < 0.1, np.nan, rng.lognormal(8, 1, count).round(2)),
            "town": [f"town {code}" for code in np.minimum(rng.geometric(0.3, count), 12)],
            "sex": rng.choice(["f", "m"], count),
        }
    )


def tables(copied: float = 0.0, count: int = 150, seed: int = 0) -> Frames:
    """Return training, holdout and synthetic rows; a share of the synthetic rows are copies of training rows."""
    rng = np.random.default_rng(seed)
    train, holdout, synth = (people(count, rng) for _ in range(3))
    copies = int(copied * count)
    return train, holdout, pd.concat([train.iloc[:copies], synth.iloc[copies:]], ignore_index=True)


def test_copied_rows_are_a_violation() -> None:
    audit = dpaudit.synthetic(*tables(copied=0.6, count=200), claim=1)
    assert audit.verdict is Verdict.VIOLATION
    assert audit.pairs == 200
    assert audit.epsilon > 2
    assert "compared with epsilon 2" in audit.answer.line("claim")
    deciding = audit.answer.test
    assert deciding is not None
    assert deciding.finding is audit.guessed[0].strict
    assert deciding.finding.confidence == pytest.approx(1 - 0.001 * audit.guessed[0].share)
    text = audit.text(verbose=True)
    assert text.startswith("VIOLATION  synthetic table\n")
    for words in ("99.92 % confidence", "(alone, not part of the verdict)", "no sign that the split is not random"):
        assert words in text
    assert "uniformly at random, and the generator did not use the holdout" in text
    assert sum(guessed.share for guessed in audit.guessed) == pytest.approx(1)


def test_fresh_rows_are_no_violation() -> None:
    audit = dpaudit.synthetic(*tables(), claim=1, relation="replace")
    assert audit.verdict is Verdict.NO_VIOLATION
    assert max(test.strict.lower for test in audit.guessed) == 0
    assert "maximum detectable epsilon" in audit.answer.line("sensitivity")
    assert "% of the training rows copied verbatim (90 % power" in audit.answer.line("sensitivity")
    assert "more rows in both files" in audit.answer.next_step


def test_few_rows_are_inconclusive() -> None:
    audit = dpaudit.synthetic(*tables(copied=1.0, count=30), claim=8)
    assert audit.verdict is Verdict.INCONCLUSIVE
    assert "copied verbatim" not in audit.answer.line("sensitivity")


def test_rows_that_others_equal_do_not_count_in_the_sensitivity() -> None:
    """Three columns of two words, and the training table released: equal rows hide which of them was copied."""
    rng = np.random.default_rng(0)
    train, holdout = (pd.DataFrame({name: rng.choice(["a", "b"], 300) for name in "xyz"}) for _ in range(2))
    audit = dpaudit.synthetic(train, holdout, train, claim=1)
    assert (audit.verdict, audit.answer.rule) == (Verdict.INCONCLUSIVE, "cannot-detect")
    assert "copied verbatim" not in audit.answer.line("sensitivity")
    assert "columns in which each row differs from all others" in audit.answer.next_step
    assert "300 of 300 pairs hold only rows that other rows have too" in str(audit)


def test_the_copied_share_counts_recognisable_rows_alone() -> None:
    """With two copies of half of the rows, twice the share of copied rows is needed, or more."""
    train, holdout, synth = tables()
    for table in (train, holdout):
        table.iloc[: len(table) // 2] = [40.0, 100.0, "town 1", "f"]
    few, all_rows = dpaudit.synthetic(train, holdout, synth, claim=0.5), dpaudit.synthetic(*tables(), claim=0.5)
    assert sensitivity_share(few) > 1.8 * sensitivity_share(all_rows)


def test_persons_are_recognised_by_a_row_of_their_own() -> None:
    table = pd.DataFrame({"x": ["a", "a", "a", "b", "c", "d", "d", "d"]})
    train, holdout, synth = encoded(table[:4], table[4:], table[:1])
    stratum = np.zeros(4, np.int64)
    canaries = Canaries(np.array([0, 0, 1, 1]), stratum), Canaries(np.array([2, 2, 3, 3]), stratum)
    pairs = paired(train, holdout, synth, seed=0, canaries=canaries)
    assert pairs.recognisable.sum(axis=1).tolist() == [1, 1]
    alone = Canaries(np.array([0, 0, 1, 1]), stratum), Canaries(np.array([2, 3, 3, 3]), stratum)
    assert paired(train, holdout, synth, seed=0, canaries=alone).recognisable.sum(axis=1).tolist() == [1, 2]


def test_a_claim_that_too_few_rows_test_says_how_many_would_do() -> None:
    audit = dpaudit.synthetic(*tables(copied=0.6), claim=2.5)
    assert audit.verdict is Verdict.INCONCLUSIVE
    words = re.findall(r"about ([\d,]+)", audit.answer.next_step)
    enough, tenth = (int(number.replace(",", "")) for number in words)
    reading = auditing.Reading(audit.tests[0].claimed, audit.tests[0].compared, 0.999, "")
    confidence = audit.guessed[0].strict.confidence

    def lower(pairs: int, right: int) -> float:
        return reading.bound(auditing._first_right(pairs, right), confidence).lower

    assert lower(enough, enough) > 5 > lower(int(0.8 * enough), int(0.8 * enough))
    assert lower(tenth, tenth // 10) > 5 > lower(int(0.8 * tenth), int(0.08 * tenth))


def test_without_a_claim_the_largest_bound_is_printed() -> None:
    audit = dpaudit.synthetic(*tables(copied=0.6))
    assert audit.verdict is Verdict.NO_CLAIM
    assert f"epsilon >= {audit.epsilon:.1f}" in audit.answer.line("lower bound")
    assert "stricter" not in str(audit)


def sensitivity_share(audit: SyntheticAudit) -> float:
    """Return the share of copied rows that the answer states."""
    return float(audit.answer.line("sensitivity").partition("would detect ")[2].partition(" %")[0]) / 100


def test_the_stated_share_of_copies_is_detected() -> None:
    """So many right guesses reject the claim, and one guess fewer does not."""
    audit = dpaudit.synthetic(*tables(), claim=0.5, relation="replace")
    reading = auditing.Reading(audit.tests[0].claimed, audit.tests[0].compared, 0.999, "")
    confidence = audit.guessed[0].strict.confidence
    share = sensitivity_share(audit)
    detected = [reading.bound(auditing._first_right(150, right), confidence).lower > 0.5 for right in range(1, 150)]
    fewest = 1 + detected.index(True)
    assert all(detected[fewest - 1 :])
    assert fewest / 150 < share < 1.6 * fewest / 150


def test_a_split_that_is_not_random_is_never_a_violation() -> None:
    train, holdout, synth = tables(copied=0.6)
    stated = dpaudit.synthetic(train, holdout, synth, claim=1, split="other")
    assert (stated.verdict, stated.answer.rule) == (Verdict.UNDECIDED, "split-not-random")
    assert "valid only if the split was random after all" in stated.answer.line("lower bound")
    assert all(guessed.bound.validity is Validity.CONDITIONAL_ON_PROXY for guessed in stated.guessed)
    rows = pd.concat([train, holdout]).sort_values("age", ignore_index=True)
    by_age = dpaudit.synthetic(rows[:150], rows[150:], rows[:150], claim=1)
    assert by_age.epsilon > 1
    assert (by_age.verdict, by_age.answer.rule) == (Verdict.UNDECIDED, "split-not-random")
    assert "column age tells training from holdout rows" in by_age.answer.line("reason")
    assert by_age.answer.line("p-value") == ""


def test_the_strict_confidence_decides() -> None:
    """A bound that exceeds the claim at 95 % alone is UNDECIDED; a right guess more changes nothing else."""
    claim = Claim(1.0, relation=Relation.REPLACE)
    reading = auditing.Reading(claim, ConvertedClaim(claim), 0.999, "")
    verdicts = {}
    for right in range(10, 50, 2):
        scores = auditing._first_right(100, right)
        guessed = GuessedPairs(
            "all pairs", 0.5, np.ones(100, bool), scores, reading.bound(scores, 0.975), reading.bound(scores, 0.9995)
        )
        test = auditing._record(guessed, reading, np.ones((2, 100), bool))
        answer = decide(Record("synthetic table", (test,), verb=Verb.SYNTHETIC))
        verdicts[right] = answer.verdict
        if answer.verdict is Verdict.UNDECIDED:
            assert test.confirmation is Confirmation.LESS_CONFIDENT
            assert "stricter confidence" in answer.line("reason")
            assert "more rows in both files. For that, split the records again" in answer.next_step
    order = [Verdict.NO_VIOLATION, Verdict.UNDECIDED, Verdict.VIOLATION]
    places = [order.index(verdict) for verdict in verdicts.values()]
    assert places == sorted(places)
    assert set(places) == {0, 1, 2}


def test_relations_and_a_holdout_that_was_used() -> None:
    data = tables(copied=0.6)
    compared = {
        name: audit.tests[0].compared.claim.epsilon
        for name, audit in {
            "add-remove": dpaudit.synthetic(*data, claim=1),
            "replace": dpaudit.synthetic(*data, claim=1, relation="replace"),
            "tuned": dpaudit.synthetic(*data, claim=1, relation="replace", tuned_on_holdout=True),
            "stated": dpaudit.synthetic(*data, claim=Claim(1.5, 1e-5, Relation.REPLACE), relation="add-remove"),
        }.items()
    }
    assert compared == {"add-remove": 2, "replace": 1, "tuned": 2, "stated": 1.5}


def test_persons_are_the_canaries() -> None:
    """Copies of one row of each person: the rows of a person are guessed together."""
    rng = np.random.default_rng(5)
    person = np.repeat(np.arange(240), 2)
    rows = people(480, rng).assign(person=person)
    rows[["age", "town"]] = people(240, rng)[["age", "town"]].iloc[person].to_numpy()
    inside = (rng.permutation(240) < 120)[person]
    synth = rows[inside].iloc[::2].drop(columns="person")
    audit = dpaudit.synthetic(rows[inside], rows[~inside], synth, claim=1, groups="person")
    assert audit.pairs == 120
    assert audit.control.rows == 240
    assert audit.verdict is Verdict.VIOLATION
    assert "120 random pairs of 120 training and 120 holdout persons" in audit.text(verbose=True)
    both = pd.concat([rows[~inside], rows[inside].iloc[:2]])
    shared = dpaudit.synthetic(rows[inside], both, synth, claim=1, groups="person")
    assert shared.pairs == 119
    assert "1 persons have rows in both files" in str(shared)
    texts = dpaudit.synthetic(
        rows[inside], both.assign(person=both["person"].map("{}.0".format)), synth, groups="person"
    )
    assert texts.pairs == 119


def test_strata_and_chosen_columns() -> None:
    train, holdout, synth = tables(copied=0.6)
    audit = dpaudit.synthetic(train, holdout, synth, claim=0.5, strata="town", columns=["age", "pay"])
    assert audit.pairs < 150
    assert audit.verdict is Verdict.VIOLATION
    assert not any("town" in test.name for test in audit.control.tests)


def test_equal_rows_and_rows_that_are_left_over_are_counted() -> None:
    train, holdout, synth = tables()
    audit = dpaudit.synthetic(
        pd.concat([train, holdout.iloc[:3], people(20, np.random.default_rng(9))]), holdout, synth
    )
    assert "3 training rows (1.73 %) are equal to a holdout row" in str(audit)
    assert "23 rows of the larger file are known to the attacker" in audit.text(verbose=True)


def test_several_synthetic_tables_are_one_release() -> None:
    train, holdout, synth = tables(copied=0.6)
    halves = [synth.iloc[:75], synth.iloc[75:]]
    together, parts = (dpaudit.synthetic(train, holdout, each, claim=1) for each in (synth, halves))
    assert parts.rows == together.rows
    assert parts.epsilon == together.epsilon


def test_a_failing_attack_is_said_and_the_others_count(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fails:
        def features(self, view: object) -> Any:
            raise ZeroDivisionError("no neighbour")

    monkeypatch.setattr(auditing, "load", lambda kind, name: Fails if name == "copies" else load(kind, name))
    audit = dpaudit.synthetic(*tables(copied=0.6), claim=1)
    assert audit.attacks[0].name == "nearest-neighbour"
    assert "copies" not in [attack.name for attack in audit.attacks]
    assert "the attack copies failed and is left out: ZeroDivisionError: no neighbour" in str(audit)
    assert audit.verdict is Verdict.VIOLATION


def test_the_same_call_gives_the_same_result_and_another_seed_another_one() -> None:
    data = tables(copied=0.3)
    first, again, other = (dpaudit.synthetic(*data, seed=seed) for seed in (0, 0, 1))
    assert first.to_dict()["tests"] == again.to_dict()["tests"]
    assert not np.array_equal(first.first_trained, other.first_trained)


def test_results_as_values() -> None:
    audit = dpaudit.synthetic(*tables(copied=0.6, count=200), claim=1)
    values = json.loads(json.dumps(audit.to_dict()))
    assert values["verdict"] == "VIOLATION"
    assert values["answer"]["next"].endswith("split the records again, fit the generator again and audit its table.")
    assert values["pairs"] == 200
    assert {test["name"] for test in values["tests"]} >= {"all pairs", "outliers"}
    assert values["control"]["random"] is True
    assert {"AUC of copies", "share of synthetic rows equal to a training row"} <= {
        measure["name"] for measure in values["measures"]
    }
    frame = audit.to_frame()
    assert list(frame["kind"].unique()) == ["test", "attack alone", "risk", "usual measure", "utility"]
    assert frame["value"].iloc[0] == audit.guessed[0].bound.lower
    assert "VIOLATION" in audit._repr_html_()
    assert audit.attacks[0].score.shape == audit.trained.shape


def test_forms_of_tables_lead_to_one_result(tmp_path: Path) -> None:
    """The numbers of a file are read as texts, those of a frame are numbers: the result must not depend on it."""
    frames = tables(copied=0.6)
    expected = dpaudit.synthetic(*frames, claim=1).epsilon
    writers: dict[str, Callable[[pd.DataFrame, Path], Any]] = {
        "csv": lambda frame, path: frame.to_csv(path, index=False),
        "csv.gz": lambda frame, path: frame.to_csv(path, index=False),
        "tsv": lambda frame, path: frame.to_csv(path, index=False, sep="\t"),
        "semicolons.csv": lambda frame, path: frame.to_csv(path, index=False, sep=";", decimal=","),
        "commas.tsv": lambda frame, path: frame.to_csv(path, index=False, sep="\t", decimal=",", na_rep="NA"),
        "parquet": lambda frame, path: frame.to_parquet(path, index=False),
    }
    sources: dict[str, list[Any]] = {
        "mapping": [frame.to_dict("list") for frame in frames],
        "arrow": [pa.Table.from_pandas(frame) for frame in frames],
    }
    for suffix, write in writers.items():
        sources[suffix] = []
        for place, frame in enumerate(frames):
            path = tmp_path / f"{place}.{suffix}"
            write(frame, path)
            sources[suffix].append(path)
    with Cases() as cases:
        for name, source in sources.items():
            with cases.case(name):
                audit = dpaudit.synthetic(*source, claim=1)
                assert audit.epsilon == expected
                lines = [note for note in audit.notes if note.startswith("read as: ")]
                comma = "read as: age: numbers, decimal commas; pay: numbers, decimal commas"
                wanted = {"semicolons.csv": [comma], "commas.tsv": [f"{comma}, NA as missing"]}
                assert lines == wanted.get(name, [])


def test_bad_input_gets_a_sentence(tmp_path: Path) -> None:
    train, holdout, synth = tables(count=20)
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "wide.csv").write_text("a,b\n1,2,3\n")
    (tmp_path / "twice.csv").write_text("a,a\n1,2\n")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1")
    calls: dict[str, tuple[tuple[Any, ...], dict[str, Any], str]] = {
        "no file": ((tmp_path / "none.csv", holdout, synth), {}, "it does not exist"),
        "folder": ((tmp_path, holdout, synth), {}, "got a folder"),
        "empty": ((tmp_path / "empty.csv", holdout, synth), {}, "is empty"),
        "wide": ((tmp_path / "wide.csv", holdout, synth), {}, "must have 2 columns"),
        "twice": ((tmp_path / "twice.csv", holdout, synth), {}, "must name each column once"),
        "broken": ((tmp_path / "broken.parquet", holdout, synth), {}, "it has no footer"),
        "number": ((3, holdout, synth), {}, "the training table must be a path"),
        "no synthetic table": ((train, holdout, []), {}, "at least one synthetic table"),
        "no rows": ((train.iloc[:0], holdout, synth), {}, "must have rows"),
        "few": ((train.iloc[:4], holdout, synth), {}, "at least 10 pairs"),
        "column": ((train, holdout, synth.drop(columns="age")), {}, "lacks the column 'age'"),
        "chosen column": ((train, holdout, synth), {"columns": ["salary"]}, "columns must be in all tables"),
        "persons": ((train, holdout, synth), {"groups": "person"}, "`groups` must name a column of both files"),
        "missing persons": ((train.assign(person=None), holdout.assign(person=1), synth), {"groups": "person"}, "none"),
        "relation": ((train, holdout, synth), {"claim": 1, "relation": "label"}, "add-remove or replace"),
        "split": ((train, holdout, synth), {"split": "date"}, "split must be 'random' or 'other'"),
        "confidence": ((train, holdout, synth), {"confidence": 0.5}, "confidence must be in"),
        "claim": ((train, holdout, synth), {"claim": "much"}, "claim must be like"),
    }
    with Cases() as cases:
        for name, (data, options, words) in calls.items():
            with cases.case(name), pytest.raises(AuditError, match=words) as refused:
                dpaudit.synthetic(*data, **options)
            assert "\n" not in str(refused.value)


def test_a_doubted_split_is_said_without_a_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    doubted = SplitControl((SplitTest("column age", 1e-9),), 300, 0, 300)
    monkeypatch.setattr(auditing, "split_control", lambda pairs, **_: doubted)
    audit = dpaudit.synthetic(*tables(copied=0.6))
    assert audit.verdict is Verdict.NO_CLAIM
    assert "column age tells training from holdout rows" in audit.answer.line("caution")


# The command line


def dpaudit_command(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["synthetic", *map(str, arguments)])


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / name for name in ("train.csv", "holdout.csv", "synth.csv")]
    for frame, path in zip(tables(copied=0.6), paths, strict=True):
        frame.to_csv(path, index=False)
    return paths


def test_the_command_prints_the_answer_and_ends_by_the_verdict(files: list[Path]) -> None:
    result = dpaudit_command(*files, "--claim", 1)
    assert result.exit_code == 0
    assert result.output.startswith("VIOLATION  synthetic table")
    assert dpaudit_command(*files, "--claim", 1, "--fail-on-violation").exit_code == 1
    assert dpaudit_command(*files, "--claim", 9, "--fail-on-violation", "--fail-on-inconclusive").exit_code == 4
    values = json.loads(dpaudit_command(*files, "--claim", 1, "--json", "--split", "other").stdout)
    assert values["verdict"] == "UNDECIDED"
    assert "--fail-on-violation needs --claim" in dpaudit_command(*files, "--fail-on-violation").output
    assert dpaudit_command(*files[:2], "none.csv").exit_code == 2


def test_utility_of_the_predicted_column() -> None:
    """A copy is as useful as the training rows; an unknown column is refused before anything is computed."""
    train, holdout, synth = tables(copied=1.0, count=200)
    column = str(train.columns[0])
    by_name = {measure.name: measure for measure in dpaudit.synthetic(train, holdout, synth, target=column).utility}
    assert by_name["mean_two_way_distance"].value == 0 < by_name["mean_two_way_distance"].reference
    with pytest.raises(AuditError, match="target must be a compared column"):
        dpaudit.synthetic(train, holdout, synth, target="no such column")


def exchanges() -> dict[str, tuple[Frames, str]]:
    """Return three tables that were given in wrong places, and words of the sentence on them."""
    train, holdout, synth = tables(copied=0.6)
    both = pd.concat([train, holdout])
    return {
        "exchanged": ((holdout, train, synth), "the holdout file seem to be exchanged"),
        "synthetic twice": ((train, synth, synth), "the holdout file seems to be the synthetic table: 150 of 150"),
        "holdout twice": ((train, holdout, holdout), "the holdout file seems to be the synthetic table: 150 of 150"),
        "training twice": (
            (train, train, synth),
            "the holdout file seems to hold training rows, or copies: 150 of 150",
        ),
        "all rows as holdout": (
            (train, both, synth),
            "the holdout file seems to hold training rows, or copies: 150 of",
        ),
        "synthetic as holdout": (
            (train, synth, holdout),
            "the holdout file seems to hold training rows, or copies: 90 of",
        ),
    }


@pytest.mark.parametrize("name", list(exchanges()))
def test_exchanged_files_are_named(name: str) -> None:
    frames, words = exchanges()[name]
    audit = dpaudit.synthetic(*frames, claim=0.3)
    assert audit.verdict in (Verdict.UNDECIDED, Verdict.INCONCLUSIVE)
    assert words in audit.answer.line("reason")


def test_tables_of_many_equal_rows_are_not_taken_for_exchanged() -> None:
    rng = np.random.default_rng(0)
    frames = [pd.DataFrame({name: rng.choice(["a", "b", "c"], 200) for name in "xyz"}) for _ in range(3)]
    audit = dpaudit.synthetic(*frames, claim=0.3)
    assert not audit.tests[0].sensitivity.blind


def test_equal_rows_of_persons_are_no_sign_of_exchanged_files() -> None:
    """Twenty persons of two kinds, thirty equal rows each; three and seven persons of the kind that is synthetic."""
    person = np.repeat(np.arange(20), 30)
    kind = np.arange(20) % 2
    table = people(2, np.random.default_rng(0)).iloc[kind[person]].assign(person=person)
    inside = np.isin(person, [0, 2, 4, 1, 3, 5, 7, 9, 11, 13])
    synth = table[kind[person] == 0].drop(columns="person")
    audit = dpaudit.synthetic(table[inside], table[~inside], synth, claim=1, groups="person")
    assert not audit.tests[0].sensitivity.blind


@pytest.mark.parametrize("index", ["Unnamed: 0", "", "__index_level_0__"])
def test_row_numbers_without_a_name_are_left_out(index: str) -> None:
    train, holdout, synth = tables()
    numbers = np.random.default_rng(0).permutation(300)
    train.insert(0, index, numbers[:150])
    holdout.insert(0, index, numbers[150:])
    audit = dpaudit.synthetic(train, holdout, synth)
    assert f"the column {index!r} has no name and holds row numbers: it is left out" in audit.notes
    assert not any(f"column {index} " in f"{test.name} " for test in audit.control.tests)
    train[index] //= 2
    with pytest.raises(AuditError, match="lacks the column"):
        dpaudit.synthetic(train, holdout, synth)


def test_the_rows_of_long_tables_are_sampled_with_their_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """200 of 400 rows: half of the copies are of drawn rows, and all of these are in the sample."""
    monkeypatch.setattr(inputs, "MOST_COMPARED", 8 * 200**2)
    audit = dpaudit.synthetic(*tables(copied=0.6, count=400), claim=1)
    assert audit.verdict is Verdict.VIOLATION
    assert audit.pairs == 200
    sample = "200 of 400 training, 200 of 400 holdout, 200 of 400 synthetic rows"
    assert f"a random sample is audited: {sample}" in audit.notes


def test_sampled_persons_keep_all_their_rows_in_both_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five of the 25 persons of the training file have rows in the holdout too; the holdout alone is short enough."""
    monkeypatch.setattr(inputs, "MOST_COMPARED", 8 * 60**2)
    table = pd.DataFrame({"x": np.arange(140.0)})
    train, holdout, synth = encoded(table[:100], table[100:], table)
    person, stratum = np.arange(100) // 4, np.zeros(100, np.int64)
    canaries = Canaries(person, stratum), Canaries(person[:40] + 20, stratum[:40])
    samples, sample_canaries = inputs.sampled([train, holdout, synth], canaries, seed=0)
    assert sample_canaries is not None
    assert [len(part) for part in samples] == [file.person.size for file in sample_canaries] + [60]
    both = set(range(20, 25))
    assert both & set(sample_canaries[0].person) == both & set(sample_canaries[1].person) != both
    assert all(
        np.unique(file.person, return_counts=True)[1].tolist() == [4] * (file.person.size // 4)
        for file in sample_canaries
    )


def test_wide_tables_are_compared_in_some_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "MOST_COLUMNS", 5)
    frames = [pd.DataFrame(np.random.default_rng(seed).normal(size=(40, 30)).round(1)) for seed in range(3)]
    audit = dpaudit.synthetic(*frames, target="9")
    assert "6 of 30 columns are compared, evenly spaced; `columns` chooses others" in audit.notes
    names = [str(place) for place in range(30)]
    assert inputs.surplus(names[:5], None) == []
    assert not {"0", "29", "9"} & set(inputs.surplus(names, "9"))


def test_steps_of_large_audits_are_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auditing, "ANNOUNCED", 0)
    steps: list[str] = []
    audit = dpaudit.synthetic(*tables(), progress=steps.append)
    attacks = ["nearest-neighbour", "copies", "attacks on views"]
    assert steps == ["further views", "control", *attacks, "guesses", "risks", "usual measures", "utility"]
    assert list(audit.seconds) == ["reading", *steps]


@pytest.mark.parametrize("column", ["age", "pay", "town"])
@pytest.mark.parametrize("role", range(3))
def test_a_column_that_is_empty_in_one_table_is_named(column: str, role: int) -> None:
    frames = tables()
    frames[role][column] = np.nan
    audit = dpaudit.synthetic(*frames)
    assert f"the column {column!r} is empty in the {list(audit.rows)[role]} table" in audit.notes
    assert any(measure.name == "test_accuracy" for measure in audit.utility)


def test_an_empty_target_and_one_of_many_words_leave_the_model_out() -> None:
    train, holdout, synth = tables()
    synth["pay"] = np.nan
    for table in (train, holdout):
        table["zip"] = np.arange(150) // 2 + 10_000
        table["zip"] = "z" + table["zip"].astype(str)
    synth["zip"] = train["zip"]
    for target in ("pay", "zip"):
        audit = dpaudit.synthetic(train, holdout, synth, target=target)
        assert not any(measure.name.startswith("test_") for measure in audit.utility)
        assert any("the model of the utility is left out" in note for note in audit.notes)


@pytest.mark.parametrize(
    ("column", "options", "message"),
    [
        ({"who": [[1]] * 12}, {"groups": "who"}, "must be single values"),
        ({"Unnamed: 0": [1j * n for n in range(12)]}, {}, "real numbers"),
    ],
)
def test_odd_columns_are_refused(column: dict[str, Any], options: dict[str, Any], message: str) -> None:
    rows = pd.DataFrame({"a": range(12), **column})
    with pytest.raises(DataError, match=message):
        dpaudit.synthetic(rows, rows, rows, **options)


def test_persons_need_one_column() -> None:
    rows = pd.DataFrame([[n, n] for n in range(12)], columns=["who", "who"])
    with pytest.raises(DataError, match="several called 'who'"):
        dpaudit.synthetic(rows, rows, rows, groups="who")


def test_infinite_numbers_can_be_the_target() -> None:
    rng = np.random.default_rng(3)
    tables = [pd.DataFrame({"a": rng.normal(size=30), "b": rng.choice([0.0, 1e308, np.inf], 30)}) for _ in range(3)]
    assert dpaudit.synthetic(*tables).verdict is Verdict.NO_CLAIM
