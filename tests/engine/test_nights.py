"""Checks whose evidence grows over nights: the file, seeds, other code and claims, the verdict of all nights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dpaudit import Report, RunOptions, Verdict, check
from dpaudit.engine.cli.main import main
from dpaudit.engine.exits import Ended
from dpaudit.engine.run.nights import OverNights
from dpaudit.errors import InputError, SpecError

pytestmark = pytest.mark.nightly
KEPT: list[int] = []


def count(rows: Any, rng: Any) -> int:
    """Of two-sided geometric noise: epsilon is 1.1."""
    return len(rows) + int(rng.geometric(0.667129) - rng.geometric(0.667129))


def other_count(rows: Any, rng: Any) -> int:
    return len(rows) + int(rng.geometric(0.632121) - rng.geometric(0.632121))


def remembering(rows: Any, rng: Any) -> int:
    """Draws once for each number of rows, and then gives the same."""
    while len(KEPT) <= len(rows):
        KEPT.append(len(KEPT) + int(rng.geometric(0.632121) - rng.geometric(0.632121)))
    return KEPT[len(rows)]


def night(file: Path, function: Any = count, *, claim: float = 1.0, **more: Any) -> tuple[Report, OverNights]:
    here = RunOptions(runner="in-process", figures=False)
    asked = {"schema": {"x": (0, 1)}, "budget": "0.5s", "quiet": True, "output": file.parent / "run"}
    report = check(function, claim=claim, evidence=file, run=here, **asked | more)
    assert isinstance(report.joint, OverNights)
    return report, report.joint


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.fixture(scope="module")
def nights(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[OverNights]]:
    """Two nights, the second one twice; a night of another claim, one of other code, and one more of the first."""
    file = tmp_path_factory.mktemp("nights") / "count.jsonl"
    told = [night(file)[1], night(file, seed=7)[1], night(file, seed=7)[1]]
    told += [night(file, claim=2.0)[1], night(file, other_count)[1], night(file)[1]]
    return file, told


def test_each_night_has_its_own_seed_and_one_that_is_not_new_counts_once(nights: tuple[Path, list[OverNights]]) -> None:
    file, (first, second, again, *_) = nights
    written = lines(file)
    assert len({line["seed"] for line in written}) == len(written) == 5
    assert first.over is not None
    assert second.over is not None
    assert again.over is not None
    assert (first.over.nights, second.over.nights, again.over.nights) == (1, 2, 2)
    assert again.over.evidence == second.over.evidence == pytest.approx(written[1]["evidence"])
    assert again.over.said == "seed 7 is not new, and was not counted again"
    assert second.over.evidence == pytest.approx(first.over.evidence * second.over.tonight)


def test_another_claim_and_other_code_start_anew_and_the_old_nights_stay(nights: tuple[Path, list[OverNights]]) -> None:
    file, told = nights
    assert [joint.over.nights for joint in told[3:] if joint.over is not None] == [1, 1, 3]
    assert len({line["of"] for line in lines(file)}) == 3


def test_nights_share_the_error(nights: tuple[Path, list[OverNights]]) -> None:
    """Half is of all together, and the check of the n-th night has 1 / n - 1 / (n + 1) of the other half."""
    _, told = nights
    alone = [1 - told[place].confidence for place in (0, 1, 5)]
    assert alone == pytest.approx([0.0005 / 2, 0.0005 / 6, 0.0005 / 12], rel=1e-6)
    assert all(joint.over is not None and joint.over.needed == pytest.approx(2000) for joint in told)


def test_a_night_refuted_by_all_together_is_a_violation_until_code_or_claim_change(tmp_path: Path) -> None:
    """Earlier nights are written by hand: their bets were won as a leak of 1.1 nats wins them, in 10,000 calls."""
    file = tmp_path / "nights.jsonl"
    night(file)
    (first,) = lines(file)
    won = {"hits": [[3_750] * 6] * 2, "alarms": [[1_248] * 6] * 2, "pairs": 5_000}
    earlier = [first | {"seed": seed, "won": {"row-function": won}} for seed in (1, 2)]
    file.write_text("".join(json.dumps(line) + "\n" for line in earlier))
    report, joint = night(file)
    assert joint.over is not None
    assert joint.over.refuted == 2
    assert joint.over.nights == 3
    assert joint.verdict is Verdict.VIOLATION
    assert "refuted in night 2 of 3" in joint.headline
    assert report.violations
    assert not report.undecided
    told = json.loads((tmp_path / "run" / "bounds.json").read_text())["joint"]
    assert (told["verdict"], told["nights"]["nights"]) == ("VIOLATION", 3)
    assert "refuted in night 2 of 3" in (tmp_path / "run" / "report.html").read_text()
    assert night(file, claim=1.5)[1].verdict is not Verdict.VIOLATION


def test_calls_that_remember_refute_nothing_over_nights(tmp_path: Path) -> None:
    file, verdicts = tmp_path / "nights.jsonl", []
    for _ in range(3):
        KEPT.clear()
        verdicts.append(night(file, remembering)[1].verdict)
    assert Verdict.VIOLATION not in verdicts
    assert Verdict.UNDECIDED in verdicts


def test_a_folder_has_a_file_for_each_check(tmp_path: Path) -> None:
    (tmp_path / "evidence").mkdir()
    night(tmp_path / "evidence", output=tmp_path / "run")
    (file,) = (tmp_path / "evidence").iterdir()
    assert file.name.startswith("check-count-")
    assert len(lines(file)) == 1


@pytest.mark.parametrize("line", ["no JSON", "{}", '{"of": 1'])
def test_a_line_that_is_no_night_is_refused_before_anything_runs(tmp_path: Path, line: str) -> None:
    file = tmp_path / "nights.jsonl"
    file.write_text(line + "\n")
    with pytest.raises(InputError, match=r"line 1 of .* must be a night of a check, got .*; take it out"):
        night(file)
    assert not (tmp_path / "run").exists()


def test_counts_that_no_bets_can_have_had_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "nights.jsonl"
    night(file)
    (line,) = lines(file)
    line["won"]["row-function"]["hits"][0][0] = 10**6
    file.write_text(json.dumps(line) + "\n")
    with pytest.raises(InputError, match="line 1 of"):
        night(file)


def test_what_is_no_function_on_rows_and_what_asks_for_more_calls_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="must be that of a function on rows"):
        check({"name": "randomized-response", "epsilon": 1.0}, evidence=tmp_path / "nights.jsonl", quiet=True)
    with pytest.raises(InputError, match="until_decided must be left out"):
        night(tmp_path / "nights.jsonl", until_decided=True)


def test_the_command_line_goes_on_with_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "noisy_count.py").write_text(
        "def count(rows, rng):\n    return len(rows) + int(rng.geometric(0.632121) - rng.geometric(0.632121))\n"
    )
    asked = ["check", "noisy_count:count", "--schema", "{x: [0, 1]}", "--claim", "1", "--budget", "0.5s", "--quiet"]
    for number in ("evidence of 1 night: ", "evidence of 2 nights: "):
        ended = CliRunner().invoke(main, [*asked, "--evidence", "nights.jsonl"])
        assert ended.exception is None or isinstance(ended.exception, Ended)
        assert number in ended.output
