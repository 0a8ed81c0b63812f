"""Specs from YAML and Python are checked once, with errors that name the location, and written back to YAML."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpaudit import Audit, AuditSpec, Claim, load_spec
from dpaudit.claims import GaussianDP, Relation
from dpaudit.engine.data.generated import GaussianMixture
from dpaudit.errors import InputError, SpecError
from dpaudit.estimators.one_run.guess_band import SimultaneousGuessCount
from dpaudit.estimators.one_run.signed_scores import OneRun
from dpaudit.mechanisms.labels.randomized_response import RandomizedResponse
from dpaudit.registry import register

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
SPECS = sorted(path for path in EXAMPLES.rglob("*.yaml") if path.parent.name != "cluster")
AUDITS = [path for path in SPECS if not path.name.startswith("sweep-")]
RR = {"name": "randomized-response", "epsilon": 1.0}
LEARNER = {"name": "lp-1st", "epsilon": 1.0}
OF_ANOTHER_TYPE: tuple[tuple[str, object], ...] = (
    *(("run", "in-process"), ("split", 0.5), ("split", None), ("claim", 1)),
    *(("data", 5), ("data", ["csv"]), ("game", 5), ("mechanism", 5)),
)


@pytest.mark.parametrize("path", AUDITS, ids=lambda path: path.stem)
def test_examples_round_trip_through_yaml(path: Path, tmp_path: Path) -> None:
    spec = load_spec(path)
    (tmp_path / "spec.yaml").write_text(spec.to_yaml())
    assert load_spec(tmp_path / "spec.yaml") == spec


def test_top_level_parts_are_defaults_of_every_audit() -> None:
    spec = load_spec(
        {
            "data": "iris",
            "game": {"name": "label-inference", "replays": 7},
            "audits": [{"mechanism": RR}, {"mechanism": RR, "game": {"name": "label-canaries"}}],
        }
    )
    assert [audit.game.replays for audit in spec.audits] == [7, 100]
    assert [audit.name for audit in spec.audits] == ["1 randomized-response", "2 randomized-response"]


def test_python_and_yaml_give_equal_specs() -> None:
    words = load_spec({"name": "x", "data": "gaussian-mixture", "audits": [{"name": "one", "mechanism": RR}]})
    values = AuditSpec((Audit(RandomizedResponse(1.0), GaussianMixture(), name="one"),), name="x")
    assert values == words


def test_delta_and_confidence_reach_the_estimator() -> None:
    spec = load_spec({"data": "iris", "confidence": 0.9, "mechanism": RR, "claim": {"epsilon": 1, "delta": "1e-5"}})
    assert spec.audits[0].estimator.delta == 1e-5
    assert spec.audits[0].estimator.confidence == 0.9


@pytest.mark.parametrize("game", ["label-inference", "label-canaries"])
def test_the_default_estimator_of_many_canaries_depends_on_the_claim(game: str) -> None:
    point = load_spec({"data": "iris", "game": game, "mechanism": RR, "claim": {"epsilon": 1, "delta": "1e-5"}})
    assert point.audits[0].estimator == SimultaneousGuessCount(delta=1e-5)
    curve = Claim.of(GaussianDP(1.0), relation=Relation.LABEL, delta=1e-5)
    audit = Audit(RandomizedResponse(1.0), GaussianMixture(), game=game, claim=curve)
    assert AuditSpec((audit,)).audits[0].estimator == OneRun(delta=1e-5)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "at least one audit"),
        ({"mechanism": RR}, "needs `data`"),
        ({"data": "iris", "mechanism": RR, "sed": 1}, "no field 'sed'"),
        ({"data": "iris", "mechanism": RR, "seed": -1}, r"seed must be in 0 .. 10\^18 - 1, got -1"),
        ({"data": "iris", "mechanism": RR, "seed": "x"}, "spec.seed must be a whole number.* got 'x'"),
        ({"data": "iris", "mechanism": RR, "confidence": 1}, r"confidence must be in \(0, 1\), got 1"),
        ({"data": "irises", "mechanism": RR}, "data must be one of .*iris.*, got 'irises'"),
        ({"data": "iris", "mechanism": RR, "split": {"target": 0.9, "reference": 0.9}}, "sum to at most 1"),
        ({"data": "iris", "mechanism": RR, "split": {"traget": 0.9}}, "no field 'traget'"),
        ({"data": "iris", "mechanism": RR, "claim": {"epsilon": 0}}, "a claimed epsilon must be > 0"),
        ({"data": "iris", "mechanism": RR, "game": "membership"}, "says nothing about a game with add-remove"),
        ({"data": "iris", "mechanism": RR, "run": {"workers": 0}}, "workers must be >= 1"),
        ({"data": "iris", "mechanism": RR, "estimator": "band"}, "got band, which assumes independent trials"),
        ({"data": "iris", "mechanism": RR, "estimator": "betting"}, "got betting, which assumes independent"),
        (
            {"data": "iris", "mechanism": RR, "estimator": "two-cut"},
            "estimator must read scores, got two-cut, which reads tables of counts; use `dpaudit estimate`",
        ),
        ({"data": "iris", "audits": [{"name": "a", "mechanism": RR}] * 2}, "a is used twice"),
        ({"data": "iris", "mechanism": "lp-1st"}, "mechanism needs epsilon"),
        *(({"data": "iris", "mechanism": RR} | {part: value}, f"{part}.* must be") for part, value in OF_ANOTHER_TYPE),
        (
            {"data": "iris", "mechanism": {**LEARNER, "model": 5}},
            "mechanism.model must be a name or a mapping",
        ),
        (
            {"data": "iris", "mechanism": {**LEARNER, "model": {"name": "mlp", "hidden": [8, "x"]}}},
            r"mechanism.model.hidden\[1\] must be a whole number",
        ),
        (
            {
                "data": "iris",
                "mechanism": RR,
                "claim": {"epsilon": 1, "delta": 0.1},
                "estimator": {"name": "one-run", "delta": 0},
            },
            "must be at least the claim's delta 0.1, got 0",
        ),
    ],
)
def test_an_invalid_spec_gives_a_one_line_error(content: dict[str, object], message: str) -> None:
    with pytest.raises((SpecError, InputError), match=message) as caught:
        load_spec(content)
    assert "\n" not in str(caught.value)


def test_an_invalid_spec_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="must be a readable spec file"):
        load_spec(tmp_path / "none.yaml")
    (tmp_path / "list.yaml").write_text("- 1\n")
    with pytest.raises(SpecError, match="must hold a mapping"):
        load_spec(tmp_path / "list.yaml")
    (tmp_path / "broken.yaml").write_text("a: [1")
    with pytest.raises(SpecError, match="must be YAML"):
        load_spec(tmp_path / "broken.yaml")


@pytest.mark.parametrize(
    ("kind", "part"),
    [
        ("mechanism", {"name": "os:system", "command": "touch MARK"}),
        ("mechanism", {"name": "subprocess:Popen", "args": "touch MARK", "shell": True}),
        ("mechanism", {"name": "tests.engine.test_request:unmarked", "path": "MARK"}),
        ("mechanism", {"name": "builtins:print"}),
        ("mechanism", "os:path"),
        ("mechanism", "tests.engine.test_request:RR"),
        ("data", {"name": "os:system", "command": "touch MARK"}),
        ("game", {"name": "os:system", "command": "touch MARK"}),
        ("attack", {"name": "os:system", "command": "touch MARK"}),
        ("proxy", {"name": "os:system", "command": "touch MARK"}),
        ("estimator", {"name": "os:system", "command": "touch MARK"}),
    ],
)
def test_a_spec_calls_only_parts(kind: str, part: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SpecError, match=r"must name a class with a method .* or a function marked with"):
        load_spec({"data": "iris", "mechanism": RR, kind: part})
    assert list(tmp_path.iterdir()) == []


def unmarked(path: str) -> RandomizedResponse:
    Path(path).touch()
    return RandomizedResponse(1.0)


@register("mechanism", "of-the-test", source="this test")
def marked(twice: float) -> RandomizedResponse:
    return RandomizedResponse(2 * twice)


class Complains:
    def __init__(self) -> None:
        raise ZeroDivisionError("a bug")

    def claim(self) -> Claim:
        return Claim(1.0)


def test_a_marked_factory_is_called() -> None:
    spec = load_spec({"data": "iris", "mechanism": {"name": "tests.engine.test_request:marked", "twice": 1.5}})
    assert spec.audits[0].mechanism == RandomizedResponse(3.0)
    with pytest.raises(SpecError, match="must name a class with a method `load` or `sample`, or a function marked"):
        load_spec({"data": "tests.engine.test_request:marked", "mechanism": RR})


def test_an_exception_of_a_user_class_gives_a_one_line_error() -> None:
    with pytest.raises(SpecError, match=r"Complains cannot be created from {}: ZeroDivisionError: a bug"):
        load_spec({"data": "iris", "mechanism": "tests.engine.test_request:Complains"})
