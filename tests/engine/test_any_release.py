"""Games over arbitrary releases: canaries in a table, and losses of sequences, each defined in one file.

Another package would register them in the same way, by entry points. They are named in a spec, planned, run, bounded
and shown in the report.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from dpaudit import Report, Verdict, audit, load_spec
from dpaudit.engine.planning.plan import make_plan
from dpaudit.errors import DataError, SpecError
from dpaudit.registry import catalogue, plural

HERE = "tests.engine.any_release"
PARTS = {
    "game": {
        "table-canaries": "table_canaries:TableCanaries",
        "sequence-canaries": "sequence_losses:SequenceCanaries",
    },
    "attack": {"nearest-record": "table_canaries:NearestRecord", "small-loss": "sequence_losses:SmallLoss"},
}
TABLE = {
    "mechanism": {"name": f"{HERE}.audited:Copier", "copied": 1.0},
    "data": {"name": f"{HERE}.audited:People", "rows": 500},
    "game": {"name": "table-canaries", "canaries": 150},
}
SEQUENCES = {
    "mechanism": {"name": f"{HERE}.audited:Grams", "noise": 0.0},
    "data": {"name": f"{HERE}.audited:Secrets", "rows": 500},
    "game": {"name": "sequence-canaries", "canaries": 150},
}


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Register the two games like those of an installed package."""
    metadata_folder = tmp_path / "site" / "others-1.0.dist-info"
    metadata_folder.mkdir(parents=True)
    (metadata_folder / "METADATA").write_text("Metadata-Version: 2.1\nName: others\nVersion: 1.0\n")
    groups = [
        "\n".join(
            [f"[dpaudit.{plural(kind)}]", *(f"{name} = {HERE}.{class_path}" for name, class_path in named.items())]
        )
        for kind, named in PARTS.items()
    ]
    (metadata_folder / "entry_points.txt").write_text("\n".join(groups) + "\n")
    monkeypatch.syspath_prepend(metadata_folder.parent)
    catalogue.cache_clear()
    yield
    catalogue.cache_clear()


def played(tmp_path: Path, spec: Mapping[str, Any], **mechanism: float) -> Report:
    spec = {**spec, "mechanism": {**spec["mechanism"], **mechanism}, "run": {"runner": "in-process", "figures": True}}
    return audit(spec, output=tmp_path / "run", quiet=True)


@pytest.mark.parametrize("spec", [TABLE, SEQUENCES], ids=["table", "sequences"])
def test_a_leak_is_found_and_shown(spec: Mapping[str, Any], tmp_path: Path) -> None:
    """All 150 fair coins are guessed correctly."""
    report = played(tmp_path, spec)
    (result,) = report.results
    assert result.verdict is Verdict.VIOLATION
    assert len(result.scores()) == 150
    page = (tmp_path / "run" / "report.html").read_text()
    assert spec["game"]["name"] in page
    assert "simultaneous-guess-count" in page
    again = load_spec(tmp_path / "run" / "spec.yaml")  # a spec can name games of another package
    assert type(again.audits[0].game).__name__ in {"TableCanaries", "SequenceCanaries"}


@pytest.mark.parametrize(
    ("spec", "mechanism"), [(TABLE, {"copied": 0.0}), (SEQUENCES, {"noise": 1e6})], ids=["table", "sequences"]
)
def test_a_private_mechanism_is_not_rejected(
    spec: Mapping[str, Any], mechanism: Mapping[str, float], tmp_path: Path
) -> None:
    """The scores hardly depend on the coins and the claim is 1. False failure < 0.05; the seed is fixed."""
    (result,) = played(tmp_path, spec, **mechanism).results
    assert result.verdict is not Verdict.VIOLATION


@pytest.mark.parametrize("spec", [TABLE, SEQUENCES], ids=["table", "sequences"])
def test_the_games_need_no_proxy_and_no_classes(spec: Mapping[str, Any]) -> None:
    plan = make_plan(load_spec(spec))
    assert [unit.function_name for unit in plan.units] == ["run_mechanism", "play_replays", "count"]
    assert not any(hasattr(rows, "classes") for rows in plan.shared.values())


def test_rows_of_another_class_are_refused() -> None:
    with pytest.raises(SpecError, match="the game needs rows of class Records, got Sequences"):
        make_plan(load_spec({**TABLE, "data": SEQUENCES["data"]}))
    with pytest.raises(SpecError, match="the game needs rows of class Records, got Examples"):
        make_plan(load_spec({**TABLE, "data": "iris"}))
    with pytest.raises(SpecError, match="the game needs rows of class Examples, got Records"):
        make_plan(load_spec({"mechanism": {"name": "lp-1st", "epsilon": 1.0}, "data": TABLE["data"]}))
    with pytest.raises(DataError, match=r"must return dpaudit.Examples, or rows with `name`, `digest`, `take`"):
        make_plan(load_spec({**TABLE, "data": f"{HERE}.audited:NoRows"}))
