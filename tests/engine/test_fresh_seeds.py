"""Search, shadow models and fresh trials of a game share no seed, so no attack learns from the noise it is tested
on."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

import pytest
import yaml

from dpaudit import Claim, Relation
from dpaudit.actors.seed import Seed
from dpaudit.actors.unit import Unit
from dpaudit.actors.work import Call, keys_in
from dpaudit.engine.data.table_rows import SchemaRows
from dpaudit.engine.games.functions.game import RowFunctionGame
from dpaudit.engine.planning.plan import Plan, make_plan
from dpaudit.engine.request.audit_spec import Audit, AuditSpec
from dpaudit.engine.request.loading import load_spec
from dpaudit.mechanisms.adapters.code_on_rows import OwnFunction
from dpaudit.synthetic_tables.games.membership import TableMembershipGame
from tests.golden.__main__ import HERE

GOLDEN = yaml.safe_load((HERE / "specs.yaml").read_text())
SHARED = {part: GOLDEN["usual"][part] for part in ("seed", "run")}
SPECS: dict[str, Any] = {name: SHARED | words for name, words in GOLDEN["specs"].items()}
SPECS["crafted-queries"] = {
    "data": {"name": "digits", "flat": True},
    "game": {"name": "crafted-queries", "trials": 20, "search": 40, "stack": 20},
    "mechanism": {"name": "private-knn"},
}
SPECS["last-iterate"] = {
    "data": {"name": "digits", "flat": True},
    "game": {"name": "last-iterate", "trials": 20, "search": 64, "stack": 10},
    "mechanism": {"name": "dp-sgd", "epsilon": 4},
}
SPECS["text-canaries"] = {
    "data": {"name": "made-sentences", "rows": 50},
    "game": {"name": "text-canaries", "canaries": 20, "trainings": 2},
    "mechanism": {"name": "fine-tuning", "trainer": {"name": "full", "epsilon": 8}},
}
SPECS["text-worlds"] = {
    "data": {"name": "made-sentences", "rows": 50},
    "game": {"name": "text-worlds", "trials": 4, "stack": 2},
    "mechanism": {"name": "fine-tuning", "trainer": {"name": "lora", "epsilon": 8}},
}
# These share coins or calls on purpose: the same replays without privacy or noise, or by a weaker attack.
SAME_ON_PURPOSE = ("control, ", "what a mechanism without privacy would show")
# Parts of one training, which draw from different children of its seed.
PARTS = ("train_teachers", "release_answers", "train_model", "ask_teachers", "train_and_ask")
ONLY_CHOOSE = ("offer_worlds", "try_tables", "try_again")
LEARN = [
    *("label-channel", "label-repeats", "label-secrets", "label-crafted", "ind-mia", "mia", "opposing-gradients"),
    *("last-iterate", "crafted-queries", "neighbours", "row-function", "table-membership"),
]
ON_ROWS = {"row-function": RowFunctionGame(), "table-membership": TableMembershipGame(rows=5)}


def total(rows: Any, rng: Any) -> float:
    return float(len(rows) + rng.laplace())


def planned(name: str) -> Plan:
    if name not in ON_ROWS:
        return make_plan(load_spec(SPECS[name] | {"name": name}))
    rows = SchemaRows({"x": (0, 1)})
    function = OwnFunction(total, Claim(1.0, relation=Relation.ADD_REMOVE))
    return make_plan(AuditSpec((Audit(mechanism=function, data=rows, game=ON_ROWS[name]),)))


def purpose(unit: Unit) -> str:
    """Return the function and the label of a unit without numbers; parts of one training have one purpose."""
    label = re.sub("[0-9]+", "", unit.label)
    if unit.function_name in PARTS:
        return "training: " + re.sub(r", (teachers.*|answers|asked)$", "", label)
    return f"{unit.function_name}: {label}"


def reused(plan: Plan) -> list[set[str]]:
    """Return sets of units of one audit that share a seed, or a prefix of it, for different purposes.

    Includes units that are read twice, both for learning and for testing.
    """
    results = []
    for entry in plan.audits:
        purposes = defaultdict(set)
        for unit in entry.units:
            same = unit.label.startswith(SAME_ON_PURPOSE) or "without noise" in unit.label
            if not isinstance(unit.task, Call) or same:
                continue
            seed_keys = list(keys_in(unit.task))
            results += [{f"{unit.label} reads {key} twice"} for key in set(seed_keys) if seed_keys.count(key) > 1]
            seed = dict(unit.task.arguments).get("seed")
            if seed is not None and unit.function_name not in ONLY_CHOOSE:
                purposes[(seed.entropy, *seed.path)].add(purpose(unit))
        for path, labels in purposes.items():
            above = (purposes.get(path[:length], set()) for length in range(1, len(path)))
            results += [labels | others for others in above if others - labels]
        results += [labels for labels in purposes.values() if len(labels) > 1]
    return results


@pytest.mark.parametrize("name", [*SPECS, *ON_ROWS])
def test_units_with_different_purposes_share_no_seed(name: str) -> None:
    assert not reused(planned(name))


@pytest.mark.parametrize("name", LEARN)
def test_a_seed_shared_by_search_and_test_is_detected(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted defect: search and test draw from one seed."""
    child = Seed.child

    def merged_child(self: Seed, *path: Any) -> Seed:
        words = ("search", "shadows", "population", "trials", "releases", "fresh", "trainings")
        return child(self, *("any" if str(word).rstrip("0123456789") in words else word for word in path))

    monkeypatch.setattr(Seed, "child", merged_child)
    assert reused(planned(name))
