"""Resources that a spec requests: which units hold them, which runner they need, and where they are refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from dpaudit import Audit, AuditSpec, ResourceRequest, RunOptions, audit, load_spec, sweep
from dpaudit.actors.unit import Resources
from dpaudit.actors.work import Call, _Inlined, _signature
from dpaudit.engine.cli.main import main
from dpaudit.engine.cli.names import spec_schema
from dpaudit.engine.planning.plan import Plan, make_plan
from dpaudit.engine.request.check import CheckOptions, CheckRequest, check_spec
from dpaudit.engine.run.runners import _kinds_of_some
from dpaudit.errors import RunError, SpecError
from dpaudit.mechanisms.labels.randomized_response import RandomizedResponse

GOLDEN = Path(__file__).parent.parent / "golden" / "specs.yaml"
GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "cluster.md"
H100 = "accelerator_type:H100"
SPEC: dict[str, Any] = {
    "name": "placed",
    "seed": 1,
    "data": {"name": "gaussian-mixture", "rows": 400},
    "game": {"name": "label-inference", "replays": 2},
    "run": {"resources": {"cpus": 2, "memory": "1GB"}, "figures": False, "repeats": 0},
    "audits": [
        {"name": "everywhere", "mechanism": {"name": "lp-1st", "epsilon": 1.0, "model": "recall"}},
        {
            "name": "on cards",
            "mechanism": {"name": "lp-1st", "epsilon": 2.0, "model": "recall"},
            "resources": {"gpus": 0.5, "memory": "8GB", "custom": {H100: 0.001}},
        },
        {
            "name": "labels",
            "mechanism": {"name": "randomized-response", "epsilon": 1.0},
            "resources": {"gpus": 0.5, "memory": "8GB"},
        },
    ],
}


def resources_by_label(plan: Plan, place: int) -> dict[str, Resources]:
    """Return the resources of the units of one audit, by label without numbers at its end."""
    return {unit.label.rstrip("0123456789- /"): unit.resources for unit in plan.audits[place].units}


def test_trainings_hold_what_stands_next_to_their_mechanism_and_other_units_cpus_alone() -> None:
    plan = make_plan(load_spec(SPEC))
    everywhere, on_cards, labels = (resources_by_label(plan, place) for place in range(3))
    usual, alone = Resources(2, memory=10**9), Resources(2)
    assert everywhere["training 1 of"] == usual
    assert on_cards["training 1 of"] == Resources(2, 0.5, 8 * 10**9, ((H100, 0.001),))
    assert labels["training 1 of"] == alone, "a label mechanism trains nothing"
    for units in (everywhere, on_cards, labels):
        assert units["reference model"] == usual, "the model of the attacker is not the audited one"
        scoring = {label for label in units if label.startswith(("replays", "counting", "control"))}
        assert len(scoring) >= 3
        assert {units[label] for label in scoring} == {alone}


def test_a_label_mechanism_that_is_called_often_holds_cpus_alone() -> None:
    entry = {**SPEC["audits"][2], "game": "label-crafted"}
    assert {unit.resources for unit in make_plan(load_spec({**SPEC, "audits": [entry]})).units} == {Resources(2)}


def test_a_proxy_that_trains_nothing_holds_cpus_alone() -> None:
    plan = make_plan(load_spec({**SPEC, "proxy": "true-posterior", "run": {"resources": {"gpus": 1}}}))
    units = resources_by_label(plan, 0)
    assert (units["reference model"], units["training 1 of"]) == (Resources(1), Resources(1, 1.0))


def test_the_example_of_the_guide_means_what_the_guide_says() -> None:
    example = GUIDE.read_text().partition("## Resources of units")[2].partition("```yaml")[2].partition("```")[0]
    plan = make_plan(load_spec(yaml.safe_load(example)))
    usual, on_a_card = Resources(2, memory=2 * 10**9), Resources(2, 0.5, 8 * 10**9, ((H100, 0.001),))
    for place, trained in enumerate((usual, on_a_card)):
        units = resources_by_label(plan, place)
        assert (units["reference model"], units["training 1 of"], units["replays"]) == (usual, trained, Resources(2))


def test_a_training_that_two_audits_share_has_the_larger_request() -> None:
    request = {"memory": "8GB", "custom": {H100: 0.001}}
    larger = {**SPEC["audits"][0], "name": "larger", "resources": request}
    for audits in ([SPEC["audits"][0], larger], [larger, SPEC["audits"][0]]):
        plan = make_plan(load_spec({**SPEC, "audits": audits}))
        (training,) = [unit for unit in plan.units if unit.label == "training 1 of 1"]
        assert training.resources == Resources(2, 0.0, 8 * 10**9, ((H100, 0.001),))


def _calls(value: Any) -> Iterator[Call]:
    """Yield the calls in a unit's task, with those that it evaluates itself."""
    if isinstance(value, Call):
        yield value
    parts = value.arguments if isinstance(value, Call) else value if isinstance(value, tuple) else ()
    for part in (*parts, *([value.call] if isinstance(value, _Inlined) else [])):
        yield from _calls(part)


def test_units_that_use_no_device_hold_no_gpu() -> None:
    """In every game; a unit whose functions do not ask for a device cannot use one."""
    holders = set()
    for name, words in yaml.safe_load(GOLDEN.read_text())["specs"].items():
        requests = {"cpus": 2, "gpus": 0.5, "custom": {H100: 0.001}}
        for unit in make_plan(load_spec({"name": name, "seed": 11, **words, "run": {"resources": requests}})).units:
            assert unit.resources.cpus == 2, "a worker of another kind could not run it, and might hold all CPUs"
            uses_device = any("compute" in _signature(call.function).parameters for call in _calls(unit.task))
            assert uses_device or unit.resources == unit.resources.without_gpu, (name, unit.label)
            holders |= {unit.function_name} if unit.resources.gpus else set()
    assert {"train_model", "make_runs", "train_and_ask", "proxy_predictions"} <= holders


def test_a_request_next_to_a_mechanism_replaces_the_fields_that_it_states() -> None:
    of_run = ResourceRequest(cpus=4, gpus=1.0, memory="2 GiB", custom={H100: 1.0})
    mechanism_request = ResourceRequest(gpus=0.0, custom={})
    assert mechanism_request.over(of_run).per_unit() == Resources(4, 0.0, 2 * 1024**3)
    assert ResourceRequest().over(of_run) == of_run
    assert ResourceRequest(memory="1.5MB").per_unit().memory == 1_500_000


def test_a_spec_keeps_its_requests_in_yaml(tmp_path: Path) -> None:
    spec = load_spec(SPEC)
    (tmp_path / "spec.yaml").write_text(spec.to_yaml())
    again = load_spec(tmp_path / "spec.yaml")
    assert again == spec
    assert again.audits[1].resources == ResourceRequest(gpus=0.5, memory=8 * 10**9, custom={H100: 0.001})


def test_former_names_of_fields_are_refused_with_the_new_name() -> None:
    with pytest.raises(SpecError, match=r"run\.cpus_per_worker is now called resources\.cpus; use that name"):
        load_spec({**SPEC, "run": {"cpus_per_worker": 3}})


@pytest.mark.parametrize(
    ("request_fields", "message"),
    [
        (
            {"memory": "8 apples"},
            'memory must be a number of bytes, or text such as "8GB" or "512MiB", got \'8 apples\'',
        ),
        ({"memory": -1}, "memory of a unit must be >= 0 bytes, got -1"),
        ({"gpus": 1.5}, r"gpus of a unit must be in \[0, 1\] or a whole number, got 1.5"),
        ({"cpus": 0}, "cpus of a unit must be >= 1, got 0"),
        ({"custom": {"GPU": 1}}, "must have a name of its own, got 'GPU'"),
        ({"gpu": 1}, "has no field 'gpu'; it has cpus, gpus, memory, custom; did you mean 'gpus'"),
    ],
)
def test_a_wrong_request_names_its_place(request_fields: dict[str, Any], message: str) -> None:
    entry = {**SPEC["audits"][0], "resources": request_fields}
    with pytest.raises(SpecError, match=rf"everywhere\).*resources.*{message}"):
        load_spec({**SPEC, "audits": [entry]})
    with pytest.raises(SpecError, match=rf"resources.*{message}"):
        load_spec({**SPEC, "run": {"resources": request_fields}})


def test_auto_is_ray_if_only_ray_can_reserve_the_resources(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    on_cpus = {**SPEC, "run": {}, "audits": SPEC["audits"][:1]}
    assert load_spec(on_cpus).runner_if_settled == "auto"
    for request in ({"gpus": 0.5}, {"memory": "1GB"}, {"custom": {H100: 0.001}}):
        assert load_spec({**on_cpus, "resources": request}).runner_if_settled == "ray"
        assert load_spec({**on_cpus, "run": {"resources": request}}).runner_if_settled == "ray"
    assert load_spec({**on_cpus, "resources": {"cpus": 2}}).runner_if_settled == "auto"
    with pytest.raises(SpecError, match="a unit with a GPU must run on Ray or in-process, got 'processes'"):
        load_spec({**on_cpus, "run": {"runner": "processes"}, "resources": {"gpus": 0.5}})


def test_a_check_requests_resources_for_its_trainings() -> None:
    request = CheckRequest({"name": "gaussian-naive-bayes", "epsilon": 1.0}, resources=ResourceRequest(gpus=0.5))
    spec = check_spec(request, CheckOptions())
    assert {spec.resources_of(entry) for entry in spec.audits} == {Resources(1, 0.5)}
    assert "resources" in spec_schema()["properties"]["check"]["properties"]


def test_the_plan_prints_the_resources_of_each_unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("spec.yaml").write_text(json.dumps({**SPEC, "audits": SPEC["audits"][1:2]}))
    text = CliRunner().invoke(main, ["plan", "spec.yaml"], catch_exceptions=False).output
    assert "2 CPU 0.5 GPU 8 GB 0.001 accelerator_type:H100  seed" in text
    assert "2 CPU 0 GPU 1 GB  seed" in text
    units = json.loads(CliRunner().invoke(main, ["plan", "spec.yaml", "--json"], catch_exceptions=False).output)[
        "units"
    ]
    training = next(unit for unit in units if unit["label"].startswith("training"))
    requested = {name: training[name] for name in ("cpus", "gpus", "memory", "custom")}
    assert requested == {"cpus": 2, "gpus": 0.5, "memory": 8 * 10**9, "custom": "0.001 accelerator_type:H100"}


def test_the_schema_describes_requests() -> None:
    properties = spec_schema()["properties"]
    for requests in (properties["resources"]["anyOf"][0], properties["run"]["properties"]["resources"]):
        assert requests["properties"].keys() == {"cpus", "gpus", "memory", "custom"}
        assert "8GB" in requests["properties"]["memory"]["description"]


SWEPT = {
    **{name: value for name, value in SPEC.items() if name != "audits"},
    "mechanism": {"name": "lp-1st", "model": "recall"},
    "run": {"runner": "ray", "workers": 1, "figures": False, "repeats": 0},
}


def test_only_resources_of_some_configurations_may_fail_alone() -> None:
    """If all configurations request too much, nothing runs."""
    request = {"custom": {"made_up_gpu": 0.5}}
    mixed = sweep_plan({"mechanism.epsilon,resources.custom": [[1.0, {}], [2.0, {"made_up_gpu": 0.5}]]})
    assert Resources(1, custom=(("made_up_gpu", 0.5),)) in _kinds_of_some(mixed)
    assert Resources() not in _kinds_of_some(mixed)
    assert _kinds_of_some(sweep_plan({"mechanism.epsilon": [1.0, 2.0]}, resources=request)) == frozenset()
    assert _kinds_of_some(make_plan(load_spec(SPEC))) == frozenset(), "only a sweep has configurations"
    trainings = [key for entry in mixed.audits for key in entry.trainings]
    rung = replace(mixed, spec=load_spec(SPEC), audits=(), units=mixed.needed(trainings))
    assert Resources(1, custom=(("made_up_gpu", 0.5),)) in _kinds_of_some(rung)


def sweep_plan(grid: dict[str, Any], **fields: Any) -> Plan:
    from dpaudit.engine.sweep.request import read_request

    request = read_request({**SWEPT, "grid": grid, **fields})
    return make_plan(request.spec(request.configurations))


@pytest.mark.ray
def test_a_request_that_no_node_meets_is_refused_before_anything_runs(ray_cluster: None, tmp_path: Path) -> None:
    entry = Audit(RandomizedResponse(1.0), "iris", "label-inference")
    learner = replace(entry, mechanism={"name": "lp-1st", "epsilon": 1.0, "model": "recall"}, name="learner")
    greedy = replace(learner, resources=ResourceRequest(custom={"made_up_gpu": 2.0}))
    with pytest.raises(RunError, match=r"needs 1 CPU and 2 made_up_gpu on one node, the largest has .* 0 made_up_gpu"):
        audit(AuditSpec((entry, greedy), run=RunOptions("ray", workers=1)), output=tmp_path / "run", quiet=True)
    assert not list((tmp_path / "run").glob("units/*"))


@pytest.mark.nightly
@pytest.mark.ray
@pytest.mark.parametrize("settings", [{}, {"rungs": {"field": "split.target", "values": [0.2, 0.4]}}])
def test_a_configuration_that_fits_on_no_node_does_not_end_the_others(
    ray_cluster: None, tmp_path: Path, settings: dict[str, Any]
) -> None:
    grid = {"mechanism.epsilon,resources.custom": [[1.0, {}], [2.0, {"made_up_gpu": 0.5}]]}
    result = sweep({**SWEPT, "grid": grid, "sweep": settings}, output=tmp_path / "run", quiet=True)
    assert [trial.configuration.state for trial in result] == ["audited", "failed"]
    (error,) = result.errors
    assert "a unit needs 1 CPU and 0.5 made_up_gpu on one node, the largest has 2 CPUs and 0 made_up_gpu" in str(error)
