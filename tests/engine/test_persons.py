"""Claims about persons: neighbours differ in all rows of one person, or in a group of different rows.

A statistic of noise-free values is compared on every pair. If it moves further than its noise allows, some pair shows
the leak; if it moves no further on any pair, no check can convict it.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import dpaudit
from dpaudit import Claim, Relation, RunOptions, Verdict
from dpaudit.engine.cli.main import main
from dpaudit.engine.data.table_rows import SchemaRows
from dpaudit.engine.games.functions.game import RowFunctionGame
from dpaudit.engine.games.functions.neighbouring_tables import TablePair, pairs
from dpaudit.engine.request.check import CheckRequest, check_spec
from dpaudit.engine.request.loading import load_spec
from dpaudit.engine.run import checking
from dpaudit.errors import InputError, SpecError
from dpaudit.mechanisms.adapters.code_on_rows import OwnFunction
from dpaudit.mechanisms.queries.schema import Category, Number, Schema
from tests.small import calls_cost

BOTH = (Relation.ADD_REMOVE, Relation.REPLACE)
VISITS = {"who": [f"p{k}" for k in range(10)], "shop": ["n", "s", "w"], "day": ["mo", "tu"], "spend": (0.0, 10.0)}
SCHEMAS: dict[str, dict[str, Any]] = {
    "words": VISITS,
    "numbers": {**VISITS, "who": (0, 10**6)},
    "real numbers": {"shop": ["n", "s"], "who": (0.0, 1.0)},
    "two persons": {"who": ["a", "b"], "spend": (0, 5)},
    "one person": {"who": ["a"], "spend": (0, 5)},
    "persons alone": {"who": [f"p{k}" for k in range(4)]},
    "any person": {"who": {"values": ["a"], "any": True}, "shop": ["n", "s"]},
}
HERE = RunOptions(runner="in-process", figures=False)

Rows = list[dict[str, Any]]


def pairs_of_persons(columns: Mapping[str, Any], relation: Relation, group: int | None, **more: Any) -> list[TablePair]:
    schema, rng = Schema.of(columns), np.random.default_rng(0)
    return pairs(schema, schema.draw(50, rng), relation, rng, group=group, person="who", **more)


def differ_in_one_person(first: Rows, second: Rows, relation: Relation, most: int | None) -> bool:
    """True if the tables differ in all rows of one person and no person has more rows than allowed."""
    tables = [[tuple((name, repr(cell)) for name, cell in row.items()) for row in rows] for rows in (first, second)]
    persons = [[dict(row)["who"] for row in table] for table in tables]
    if most is not None and any(max(Counter(names).values(), default=0) > most for names in persons):
        return False
    if relation is Relation.ADD_REMOVE:
        added = Counter(persons[1]) - Counter(persons[0])
        remaining = [row for row, name in zip(tables[1], persons[1], strict=True) if name not in added]
        return len(added) == 1 and not added.keys() & set(persons[0]) and remaining == tables[0]
    differing = [place for place, rows in enumerate(zip(*tables, strict=True)) if rows[0] != rows[1]]
    changed = {names[place] for names in persons for place in differing}
    old, new = ({names[place] for place in differing} for names in persons)
    return len(old) == len(new) == 1 and all(
        names.count(person) <= sum(name in changed for name in names) for names in persons for person in changed
    )


@pytest.mark.parametrize("relation", BOTH)
@pytest.mark.parametrize("name", SCHEMAS)
def test_two_tables_differ_in_all_rows_of_one_person(name: str, relation: Relation) -> None:
    for group in (3, 1, None):
        table_pairs = pairs_of_persons(SCHEMAS[name], relation, group)
        assert table_pairs or name == "persons alone" or name == "one person"
        assert len({pair.name for pair in table_pairs}) == len(table_pairs)
        for pair in table_pairs:
            assert differ_in_one_person(pair.d.to_pylist(), pair.d_prime.to_pylist(), relation, group), pair.name


@pytest.mark.parametrize("column", [Number(0, 4, True), Number(0.0, 1.0), Number(2.0, 2.0), Category(("a", "b"))])
def test_different_cells_are_allowed_and_end_with_the_high_end(column: Number | Category) -> None:
    for count in (1, 2, 3, 10):
        cells: Sequence[Any] = column.different(count)
        assert len(set(cells)) == len(cells) <= count
        assert all(column.allows(cell) for cell in cells)
        assert cells[-1] == (column.high if isinstance(column, Number) else column.values[-1])
    assert len(Category(("a",), any=True).different(5)) == 5
    assert len(Number(-1.7e308, 1.7e308).different(4)) == 4


def by_person(rows: Rows) -> list[Rows]:
    groups = defaultdict(list)
    for row in rows:
        groups[row["who"]].append(row)
    return list(groups.values())


def one_shop_each(rows: Rows) -> Counter[str]:
    first: dict[Any, str] = {}
    for who, shop in sorted((row["who"], row["shop"]) for row in rows):
        first.setdefault(who, shop)
    return Counter(first.values())


def two_rows_each(rows: Rows) -> Counter[str]:
    """Half a count for each of the first two rows of a person, in the order in which they come."""
    rows_by_person, counts = Counter[Any](), Counter[str]()
    for row in rows:
        rows_by_person[row["who"]] += 1
        counts[row["shop"]] += 0.5 if rows_by_person[row["who"]] <= 2 else 0  # type: ignore[assignment]
    return counts


def persons(rows: Rows) -> int:
    return len({row["who"] for row in rows})


def spend_clipped_by_person(rows: Rows) -> float:
    return sum(min(10.0, sum(row["spend"] for row in group)) for group in by_person(rows)) / 10


def mean_of_each_person(rows: Rows) -> float:
    return float(sum(np.mean([row["spend"] for row in group]) for group in by_person(rows)) / 10)


def visitors(rows: Rows) -> Counter[str]:
    """Google's issue 84: a person counts once in each shop, and in every shop."""
    return Counter(shop for _, shop in {(row["who"], row["shop"]) for row in rows})


def visits_of_days(rows: Rows) -> Counter[Any]:
    return Counter(visit[1:] for visit in {(row["who"], row["shop"], row["day"]) for row in rows})


def spend_clipped_by_row(rows: Rows) -> float:
    return sum(min(10.0, row["spend"]) for row in rows) / 10


def spend_clipped_in_each_shop(rows: Rows) -> float:
    spent = Counter[Any]()
    for row in rows:
        spent[row["who"], row["shop"]] += row["spend"]
    return sum(min(10.0, total) for total in spent.values()) / 10


def runs_of_a_person(rows: Rows) -> int:
    """Counts a person again if the rows do not follow each other."""
    return sum(1 for _ in itertools.groupby(rows, key=lambda row: row["who"]))


def different_rows(rows: Rows) -> int:
    return len({tuple(row.items()) for row in rows})


def joined_with_itself(rows: Rows) -> int:
    return sum(len(group) ** 2 for group in by_person(rows))


def pairs_of_shops(rows: Rows) -> Counter[Any]:
    """Shops that one person visited both."""
    shops_by_person = ({row["shop"] for row in group} for group in by_person(rows))
    return Counter(pair for shops in shops_by_person for pair in itertools.combinations(sorted(shops), 2))


def rows_of_light_users(rows: Rows) -> int:
    """Drops persons with more than ten rows instead of keeping some of their rows."""
    return sum(len(group) for group in by_person(rows) if len(group) <= 10)


def distance(first: Any, second: Any) -> float:
    """Return the difference of two numbers, or the sum of differences of counts."""
    if isinstance(first, Counter):
        return float(sum(abs(first[key] - second[key]) for key in {*first, *second}))
    return float(abs(first - second))


def largest_move(statistic: Callable[[Rows], Any], table_pairs: list[TablePair]) -> float:
    return max(distance(statistic(pair.d.to_pylist()), statistic(pair.d_prime.to_pylist())) for pair in table_pairs)


@pytest.mark.parametrize("schema", ["words", "numbers"])
def test_what_a_person_can_move_is_found_and_what_is_bounded_stays_so(schema: str) -> None:
    at_most_three, any_number = (
        pairs_of_persons(SCHEMAS[schema], Relation.ADD_REMOVE, group, beyond=False) for group in (3, None)
    )
    for honest in (one_shop_each, two_rows_each, persons, spend_clipped_by_person, mean_of_each_person):
        for table_pairs in (at_most_three, any_number):
            assert largest_move(honest, table_pairs) == pytest.approx(1.0), honest.__name__
    for leaky, least, least_of_any in (
        (visitors, 3, 3),
        (visits_of_days, 3, 6),
        (spend_clipped_by_row, 3, 20),
        (spend_clipped_in_each_shop, 3, 3),
        (runs_of_a_person, 3, 20),
        (different_rows, 3, 20),
        (joined_with_itself, 9, 400),
        (pairs_of_shops, 3, 3),
        (rows_of_light_users, 3, 3),
    ):
        assert largest_move(leaky, at_most_three) >= least * (1 - 1e-9), leaky.__name__
        assert largest_move(leaky, any_number) >= least_of_any * (1 - 1e-9), leaky.__name__


def test_all_rows_of_a_person_are_replaced_by_as_many() -> None:
    table_pairs = pairs_of_persons(VISITS, Relation.REPLACE, 3, beyond=False)
    for honest, most in ((one_shop_each, 2), (two_rows_each, 2), (spend_clipped_by_person, 1), (len, 0), (persons, 0)):
        assert largest_move(honest, table_pairs) == pytest.approx(most)
    for leaky, least in ((spend_clipped_by_row, 3), (spend_clipped_in_each_shop, 3), (visits_of_days, 4)):
        assert largest_move(leaky, table_pairs) >= least * (1 - 1e-9), leaky.__name__
    names = [sorted({row["who"] for row in rows}) for pair in table_pairs for rows in (pair.d.to_pylist(),)]
    assert any("p0" in first for first in names)
    by_another = [pair for pair in table_pairs if pair.name.endswith("by another person")]
    assert by_another
    for pair in by_another:
        assert set(pair.d["who"].to_pylist()) != set(pair.d_prime["who"].to_pylist())


@pytest.mark.parametrize("relation", BOTH)
def test_the_rows_of_a_group_differ_from_each_other_too(relation: Relation) -> None:
    schema, rng = Schema.of(VISITS), np.random.default_rng(0)
    table_pairs = pairs(schema, schema.draw(50, rng), relation, rng, group=3, beyond=False)

    def spread(pair: TablePair, column: str) -> bool:
        new = pair.d_prime.slice(len(pair.d) - (3 if relation is Relation.REPLACE else 0))
        others = [new[name].to_pylist() for name in VISITS if name != column]
        return len(new) == len(set(new[column].to_pylist())) == 3 and all(len(set(cells)) == 1 for cells in others)

    for column in ("who", "shop"):
        assert any(spread(pair, column) for pair in table_pairs)
    assert largest_move(visitors, table_pairs) >= (3 if relation is Relation.ADD_REMOVE else 2)
    single = pairs(schema, schema.draw(50, rng), relation, rng, beyond=False)
    assert not any(" over the " in pair.name for pair in single)


def noisy_visitors(rows: Rows, rng: np.random.Generator) -> list[int]:
    counts = visitors(rows)
    return [counts[shop] + int(rng.geometric(0.6321) - rng.geometric(0.6321)) for shop in "nsw"]


def noisy_visitors_of_one_shop(rows: Rows, rng: np.random.Generator) -> list[int]:
    counts = one_shop_each([row | {"who": str(row["who"]), "shop": str(row["shop"])} for row in rows])
    return [counts[shop] + int(rng.geometric(0.6321) - rng.geometric(0.6321)) for shop in "nsw"]


@pytest.mark.parametrize("relation", BOTH)
@pytest.mark.parametrize(("group", "words"), [(3, ", at most 3 rows"), (None, "")])
def test_a_check_of_persons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, relation: Relation, group: int | None, words: str
) -> None:
    calls_cost(monkeypatch, 0.15)
    claim = Claim(1.0 if relation is Relation.ADD_REMOVE else 1.2, relation=relation)
    schema = {"who": [f"p{k}" for k in range(6)], "shop": ["n", "s", "w"]}
    report = dpaudit.check(
        noisy_visitors, claim=claim, schema=schema, person="who", group=group, relation=relation, form="records",
        output=tmp_path, run=HERE, quiet=True,
    )  # fmt: skip
    assert report.joint is not None
    assert report.joint.verdict is Verdict.VIOLATION, report.text()
    assert f"neighbours differ in all rows of one person (column who){words}\n" in report.text()


def test_an_honest_function_of_persons_is_not_convicted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls_cost(monkeypatch, 0.15)
    schema = {"who": [f"p{k}" for k in range(6)], "shop": ["n", "s", "w"]}
    report = dpaudit.check(
        noisy_visitors_of_one_shop, claim=1.0, schema=schema, person="who", form="records", output=tmp_path, run=HERE,
        quiet=True, strict="all",
    )  # fmt: skip
    assert report.joint is not None
    assert report.joint.verdict is Verdict.NO_VIOLATION, report.text()


def game_of(spec: Mapping[str, Any], **columns: Any) -> RowFunctionGame:
    schema = columns or {"person": ["a", "b"], "x": [0, 1]}
    return RowFunctionGame(**spec).for_data(SchemaRows(schema))


def test_the_game_names_its_neighbours() -> None:
    for spec, words in (
        ({"group": 3}, "all rows of one person (column person), at most 3 rows"),
        ({"group": 3, "person": ""}, "any 3 rows"),
        ({"person": "x", "group": 1}, "all rows of one person (column x), at most 1 row"),
        ({"person": "x"}, "all rows of one person (column x)"),
        ({}, ""),
        ({"group": 1}, ""),
    ):
        assert game_of(spec).traits.differ_in == words
        assert game_of(spec).traits.compared(Claim(1.0, relation=Relation.ADD_REMOVE)).differ_in == words
    assert game_of({"group": 3}, who=["a", "b"]).traits.differ_in == "any 3 rows"


def test_what_names_no_person_is_refused() -> None:
    sentence = "person must name a column of the schema, got person = 'id', columns = 'person, x'; name the column"
    with pytest.raises(InputError, match=sentence):
        game_of({"person": "id"})
    with pytest.raises(InputError, match="person must name a column of the schema, got person = 'who'"):
        pairs_of_persons({"id": ["a"]}, Relation.REPLACE, 1)
    with pytest.raises(SpecError, match="person and group must be used with a function on rows, got LP1ST"):
        check_spec(CheckRequest({"name": "lp-1st", "epsilon": 1.0}, person="id"))
    f = noisy_visitors
    with pytest.raises(InputError, match="group must be at least 1, got 0"):
        dpaudit.check(f, claim=1.0, schema=VISITS, person="who", group=0, form="records", quiet=True)
    with pytest.raises(InputError, match=r"there must be at least `group` ordinary rows.*raise `rows` of the data"):
        pairs_of_persons(VISITS, Relation.REPLACE, 51)
    with pytest.raises(SpecError, match=r"relation, person, group, .* there is no schema"):
        dpaudit.check({"name": "lp-1st", "epsilon": 1.0}, person="id", quiet=True)


def test_a_check_and_its_spec_name_the_person_alike(tmp_path: Path) -> None:
    mechanism = OwnFunction(f"{__name__}:noisy_visitors", Claim(1.0, relation=Relation.ADD_REMOVE), form="records")
    spec = check_spec(CheckRequest(mechanism, SchemaRows(VISITS), budget="1s", person="who", group=4))
    for audit in spec.audits:
        assert (audit.game.person, audit.game.group) == ("who", 4)
    assert "person: who" in spec.to_yaml()
    for number, content in enumerate((spec.to_yaml(), CHECK)):
        path = tmp_path / f"{number}.yaml"
        path.write_text(content)
        audits = load_spec(path).audits
        assert {(audit.game.person, audit.game.group) for audit in audits} == {("who", 4)}


CHECK = f"""
check:
  mechanism:
    name: function
    function: "{__name__}:noisy_visitors"
    form: records
    claimed: {{epsilon: 1.0, relation: replace}}
  data: {{name: schema-rows, schema: {{who: [a, b], shop: [n, s, w]}}}}
  person: who
  group: 4
  budget: 1s
"""


def test_the_command_names_the_person(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    specs = []

    def keep(spec: Any, **options: Any) -> Any:
        specs.append(spec)
        raise SpecError("planned only")

    monkeypatch.setattr(checking, "audit", keep)
    words = ("check", f"{__name__}:noisy_visitors", "--schema", "{who: [a, b], shop: [n, s, w]}", "--claim", "1")
    options = ("--form", "records", "--quiet", "-o", str(tmp_path))
    named = CliRunner().invoke(main, [*words, *options, "--person", "who", "--group", "40"])
    assert named.output == "dpaudit: planned only\n"
    assert {(audit.game.person, audit.game.group) for audit in specs[0].audits} == {("who", 40)}
    missing = CliRunner().invoke(main, [*words, *options, "--person", "id"])
    assert missing.exit_code == 2
    assert "person must name a column of the schema, got person = 'id', columns = 'who, shop'" in missing.output
