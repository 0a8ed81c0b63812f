"""Our own generators of synthetic tables have the laws that they state, and summaries count what they say."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from dpaudit.claims import Relation
from dpaudit.errors import InputError
from dpaudit.mechanisms.queries.row_function import CallLimits, TableGenerator
from dpaudit.mechanisms.queries.schema import Schema
from dpaudit.synthetic_tables.mechanisms.fitted_tables import CopiedRows, GaussianCopula
from dpaudit.synthetic_tables.mechanisms.independent_marginals import IndependentMarginals
from dpaudit.synthetic_tables.mechanisms.mst_like import MstLike
from dpaudit.synthetic_tables.mechanisms.table_summary import TableBatch, TableSummary

SCHEMA: dict[str, Any] = {
    "age": [0, 100],
    "city": ["a", "b", "c", "d", "e"],
    "income": [0.0, 1e5],
    "sex": {"values": ["f", "m"], "nullable": True},
}
ROWS = Schema.of(SCHEMA).draw(40, np.random.default_rng(0))
ODD = pa.table(
    {
        "age": pa.array([None, 150.0, math.nan, math.inf]),
        "city": ["zz", None, "a", "b"],
        "income": [-1e9, 1.0, 2.0, 3.0],
        "sex": [None, "f", "m", "x"],
    }
)
GENERATORS: tuple[TableGenerator, ...] = (
    IndependentMarginals(1.0, SCHEMA, count=20),
    MstLike(0.5, SCHEMA, count=20),
    GaussianCopula(SCHEMA, count=20, measurements=True),
    CopiedRows(SCHEMA, count=20, share=0.5, jitter=0.1),
)


def _numbers(generator: TableGenerator, rows: pa.Table, seeds: range) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.stack([outcome.numbers for outcome in generator.outcomes(rows, seeds, {}, CallLimits())])


def test_a_release_depends_on_its_seed_alone_and_all_have_one_width() -> None:
    for generator in GENERATORS:
        together = _numbers(generator, ROWS, range(5))
        assert (together[3] == _numbers(generator, ROWS, range(3, 4))[0]).all()
        assert len(np.unique(together[:, 1:], axis=0)) == 5
        width = together.shape[1]
        for rows in (ROWS.slice(0, 0), ROWS.slice(0, 1), ODD):
            others = _numbers(generator, rows, range(2))
            assert others.shape == (2, width)
            assert np.isfinite(others).all()


def test_a_generated_table_fits_the_schema_and_has_the_numbers_of_an_outcome() -> None:
    schema = Schema.of(SCHEMA)
    for generator in GENERATORS:
        released = generator.generate(ROWS, 20, 7, {}, CallLimits())
        assert len(released.table) == 20
        assert released.table.schema.types == schema.arrow().types
        assert not schema.outside(released.table)
        summary = TableSummary(schema).numbers(TableBatch.of(released.table, schema))[0]
        assert np.concatenate([summary, released.measurements]) == pytest.approx(
            _numbers(generator, ROWS, range(7, 8))[0], rel=1e-12
        )


def _noisy_counts(generator: IndependentMarginals, rows: pa.Table, seeds: range) -> Any:
    return generator.releases(rows, 1, seeds).measurements


def test_noisy_counts_have_the_exact_epsilon() -> None:
    """One row more: all four ratios are up with probability (1 + q)^-4 or q^4 (1 + q)^-4, q = exp(-epsilon / 4).

    False failure < 1e-6 for each of the binomial limits.
    """
    schema = {"a": ["x", "y"], "b": ["x", "y"], "c": [0, 1], "d": [0.0, 1.0]}
    rows = pa.table({"a": ["x", "x"], "b": ["x", "x"], "c": [0, 0], "d": [0.0, 0.0]})
    more = pa.concat_tables([rows, pa.table({"a": ["y"], "b": ["y"], "c": [1], "d": [1.0]})])
    trials, cells = 20_000, [1, 3, 5, 15]
    for factor in (1.0, 0.25):
        generator = IndependentMarginals(2.0, schema, noise_factor=factor)
        odds = math.exp(-2 / 4 / factor)
        up = (1 + odds) ** -4
        for table, chance in ((more, up), (rows, odds**4 * up)):
            all_up = (_noisy_counts(generator, table, range(trials))[:, cells] >= 1).all(axis=1).sum()
            low, high = stats.binom.interval(1 - 1e-6, trials, chance)
            assert low <= all_up <= high
        assert generator.exact_epsilon() == pytest.approx(2 / factor)


def test_noise_doubles_under_replace_and_words_outside_the_schema_are_left_out() -> None:
    add_remove = IndependentMarginals(1.0, SCHEMA)
    replaced = IndependentMarginals(1.0, SCHEMA, relation=Relation.REPLACE)
    assert replaced.scales(10)["age"] == 2 * add_remove.scales(10)["age"] == pytest.approx(8.0)
    assert replaced.claim().relation is Relation.REPLACE
    without = pa.table({"age": [5], "city": ["zz"], "income": [1.0], "sex": ["f"]})
    noisy = IndependentMarginals(math.inf, SCHEMA).releases(without, 1, [0]).measurements[0]
    assert noisy.tolist() == [1.0] + [0.0] * 9 + [0.0] * 5 + [1.0] + [0.0] * 9 + [1.0, 0.0, 0.0]


def test_each_planted_defect_shows_in_the_release() -> None:
    rows = pa.table({"age": [40, 50], "city": ["b", "b"], "income": [10.0, 20.0], "sex": ["f", "f"]})
    others = pa.concat_tables([rows, rows])
    honest = IndependentMarginals(1.0, SCHEMA)
    from_domain = _noisy_counts(IndependentMarginals(1.0, SCHEMA, domain_from_data=True), rows, range(50))
    assert (from_domain == 0).all(axis=0).sum() == 10 + 5 + 10 + 3 - 5
    assert not (_noisy_counts(honest, rows, range(50)) == 0).all(axis=0).any()
    within = IndependentMarginals(1.0, SCHEMA, bounds_from_data=True).generate(rows, 50, 0, {}, CallLimits()).table
    assert within["age"].to_numpy().min() >= 40
    assert within["age"].to_numpy().max() <= 50
    assert IndependentMarginals(1.0, SCHEMA, noise_over_n=True).scales(8)["age"] == pytest.approx(4 / 8)
    counted = IndependentMarginals(1.0, SCHEMA, count_from_data=True)
    assert [_numbers(counted, table, range(1))[0, 0] for table in (rows, others)] == [2, 4]
    assert math.isinf(counted.exact_epsilon())


def test_the_tree_spans_the_columns_and_prefers_dependent_pairs() -> None:
    schema = {"a": ["x", "y"], "b": ["x", "y"], "c": ["x", "y"], "d": ["x", "y"]}
    rng = np.random.default_rng(1)
    a, c = (rng.integers(2, size=2_000) for _ in range(2))
    words = np.array(["x", "y"])
    rows = pa.table({"a": words[a], "b": words[a], "c": words[c], "d": words[c]})
    generator = MstLike(1.0, schema, count=400)
    measured = generator.releases(rows, 1, range(200)).measurements
    pairs = list(itertools.combinations("abcd", 2))
    edges = (measured[:, 8:].reshape(200, 6, 4) != 0).any(axis=2)
    assert (edges.sum(axis=1) == 3).all()
    assert edges[:, [pairs.index(("a", "b")), pairs.index(("c", "d"))]].all()
    spread = (measured[:, :8] - measured[:, :8].mean(axis=0)).std()
    assert spread == pytest.approx(generator.noise(4), rel=0.15)  # 1,600 normal numbers: 6 standard errors are 11 %
    assert generator.noise(4) == pytest.approx(math.sqrt(4 / (2 / 3)))
    assert generator.claim().epsilon == pytest.approx(7.5, abs=1.0)
    synthetic = generator.generate(rows, 400, 0, {}, CallLimits()).table.to_pydict()
    agreement = np.mean([first == second for first, second in zip(synthetic["c"], synthetic["d"], strict=True)])
    assert agreement > 0.9
    assert (
        abs(np.mean([first == second for first, second in zip(synthetic["a"], synthetic["c"], strict=True)]) - 0.5)
        < 0.2
    )


def test_a_copula_keeps_marginals_and_correlation() -> None:
    rng = np.random.default_rng(2)
    x = rng.normal(size=3_000).clip(-5, 5)
    y = np.where(x > 0.5, "high", "low")
    rows = pa.table({"x": x, "y": y})
    generator = GaussianCopula({"x": [-5.0, 5.0], "y": ["high", "low"]}, count=3_000)
    table = generator.generate(rows, 3_000, 1, {}, CallLimits()).table
    numbers, words = table["x"].to_numpy(), np.array(table["y"].to_pylist())
    assert stats.ks_2samp(numbers, x).pvalue > 1e-6
    assert abs((words == "high").mean() - (y == "high").mean()) < 0.06
    assert numbers[words == "high"].mean() - numbers[words == "low"].mean() > 1.0


def test_the_stated_share_of_rows_is_copied() -> None:
    verbatim = CopiedRows(SCHEMA, count=1_000, share=0.2).generate(ROWS, 1_000, 0, {}, CallLimits()).table
    real = set(ROWS["income"].to_pylist())
    copied = sum(income in real for income in verbatim["income"].to_pylist())
    low, high = stats.binom.interval(1 - 1e-6, 1_000, 0.2)
    assert low <= copied <= high
    jittered = CopiedRows(SCHEMA, count=1_000, share=1.0, jitter=0.01).generate(ROWS, 1_000, 0, {}, CallLimits()).table
    distance = np.abs(jittered["income"].to_numpy()[:, None] - ROWS["income"].to_numpy()).min(axis=1)
    assert 0 < np.median(distance) < 1_000


def test_the_summary_counts_like_its_slow_twin() -> None:
    schema = Schema.of(SCHEMA)
    table = pa.concat_tables([schema.draw(30, np.random.default_rng(3)), ODD], promote_options="permissive")
    summary = TableSummary(schema)
    batch = TableBatch.of(table, schema)
    (numbers,) = summary.numbers(batch)
    values = dict(zip(summary.names, numbers.tolist(), strict=True))
    assert len(values) == len(summary.names) == len(numbers)
    cities = Counter(table["city"].to_pylist())
    assert [values[f"count of city, cell {cell}"] for cell in range(5)] == [cities[word] for word in "abcde"]
    assert values["count of city outside its schema"] == 1
    assert values["count of city missing"] == 1
    ages = [age for age in table["age"].to_pylist() if age is not None and age == age]
    assert values["count of age outside its schema"] == sum(age > 100 for age in ages) == 2
    assert values["count of age missing"] == 2
    finite = [age for age in ages if age < math.inf]
    assert values["maximum of age"] == max(finite) == 150
    assert values["mean of age"] == pytest.approx(np.mean(finite))
    assert values["number of distinct values of age"] == len(set(finite))
    both = Counter(zip(table["city"].to_pylist(), table["sex"].to_pylist(), strict=True))
    assert values["count of city and sex, groups 0 and 1"] == both["a", "m"] + both["b", "m"]
    assert sum(value for name, value in values.items() if name.startswith("count of age and city")) == len(table)
    assert summary.endings(batch) == ["table; words of city outside the schema: zz; words of sex outside the schema: x"]


def test_a_table_without_the_columns_of_its_schema_is_refused() -> None:
    schema = Schema.of(SCHEMA)
    with pytest.raises(InputError, match=r"all columns of its schema.*income"):
        TableBatch.of(ROWS.drop_columns(["income"]), schema)
    with pytest.raises(InputError, match=r"must hold numbers.*age"):
        TableBatch.of(ROWS.set_column(0, "age", ROWS["city"]), schema)
