"""Detect leaking generators of tables: `dpaudit.synthetic`, anonymeter, distances and shadow models on the same tables.

    make .venv-anonymeter/.installed
    python -m benchmarks.synthetic_peers RUNS.jsonl [--seeds HONEST_TABLES] [--rows 1000] [--write]

Each method gives a number for a table, larger for more leakage. Its threshold is the one that at most 5 % of the honest
tables exceed, so that all methods have the same share of false alarms; the power is the share of leaking tables beyond
it. Honest tables are fresh draws of the law of the training rows. Seconds are those of the processor, for one table.

The shadow-model attack is written from its paper (Houssiau et al., 2022, "TAPAS"), since the toolbox is on no package
index. Unlike the others it fits the generator itself, `SHADOWS` times for each of two worlds: with a target record, or
with another one instead.
"""

from __future__ import annotations

import inspect
import json
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.ensemble import RandomForestClassifier
from sklearn.metrics import roc_auc_score

import dpaudit
from benchmarks.campaign import campaign, of_each
from benchmarks.synthetic_defects import Split, copies, interpolated, jittered, made_rows, made_split, marginals

ROOT = Path(__file__).parent.parent
Rng = np.random.Generator
Generator = Callable[[Split, Rng], pd.DataFrame]
Floats = NDArray[np.float64]

HONEST = "fresh draws"
GENERATORS: dict[str, Generator] = {
    HONEST: lambda split, rng: made_rows(len(split.training), rng),
    "1 % copied": copies,
    "5 % copied, jittered": jittered,
    "overfitted (SMOTE)": interpolated,
    "marginals, ε = 1": lambda split, rng: marginals(split, rng, 1.0),
}
FALSE_ALARMS = 0.05
TABLES = 6
"""Leaking tables of each generator."""
SHADOWS = 16
"""Fits of the generator in each world to learn from; half as many more to test on."""
QUERIES = 60
BINS = 10

ANONYMETER = """
import json, sys, time, warnings
from pathlib import Path
import pandas as pd
from anonymeter.evaluators import InferenceEvaluator, LinkabilityEvaluator, SinglingOutEvaluator
warnings.simplefilter("ignore")
train, holdout, synth = (pd.read_csv(Path(sys.argv[1]) / f"{name}.csv") for name in ("train", "holdout", "synth"))
columns, results = list(train.columns), {}
halves = columns[::2], columns[1::2]
tables = {"ori": train, "syn": synth, "control": holdout, "n_attacks": 200}
evaluators = {
    "singling out, one column": (SinglingOutEvaluator(**tables, seed=0), {"mode": "univariate"}),
    "singling out, four columns": (SinglingOutEvaluator(**tables, n_cols=4, seed=0), {"mode": "multivariate"}),
    "linkability": (LinkabilityEvaluator(**tables, aux_cols=halves, n_neighbors=10), {"n_jobs": 1}),
    "inference": (InferenceEvaluator(**tables, secret="income", aux_cols=columns[:-1]), {"n_jobs": 1}),
}
for name, (evaluator, arguments) in evaluators.items():
    began = time.process_time()
    risk = evaluator.evaluate(**arguments).risk()
    results[name] = risk.value, time.process_time() - began
print(json.dumps(results))
"""


def with_dpaudit(train: pd.DataFrame, holdout: pd.DataFrame, synth: pd.DataFrame) -> float:
    """Return the lower bound of epsilon."""
    return float(dpaudit.synthetic(train, holdout, synth).epsilon)


def with_distances(train: pd.DataFrame, holdout: pd.DataFrame, synth: pd.DataFrame) -> float:
    """Return the share of synthetic rows that are closer to a training row than to any holdout row."""
    both = pd.concat([train, holdout], ignore_index=True)
    numbers = both.select_dtypes("number").columns
    scale = both[numbers].std().to_numpy() + 1e-12
    gaps = []
    for rows in (train, holdout):
        gap = np.abs(synth[numbers].to_numpy()[:, None] / scale - rows[numbers].to_numpy() / scale).sum(-1)
        for name in both.columns.difference(numbers):
            gap += synth[name].to_numpy(str)[:, None] != rows[name].to_numpy(str)
        gaps.append(gap.min(axis=1))
    return float(np.mean(gaps[0] < gaps[1]) + np.mean(gaps[0] == gaps[1]) / 2)


def with_anonymeter(*tables: pd.DataFrame) -> dict[str, tuple[float, float]]:
    """Return risk and seconds of each evaluator for training, holdout and synthetic rows."""
    python = ROOT / ".venv-anonymeter" / "bin" / "python"
    with tempfile.TemporaryDirectory() as folder:
        for file, frame in zip(("train", "holdout", "synth"), tables, strict=True):
            frame.to_csv(Path(folder) / f"{file}.csv", index=False)
        completed = subprocess.run(
            [str(python), "-W", "ignore", "-c", ANONYMETER, folder], capture_output=True, text=True, check=True
        )
    results: dict[str, tuple[float, float]] = json.loads(completed.stdout)
    return {f"anonymeter, {name}": result for name, result in results.items()}


def with_shadow_models(split: Split, generator: Generator, rng: Rng) -> float:
    """Return the AUC at which shadow models tell whether the farthest training row was fitted on.

    The attacker knows the generator and has other rows of the law. A random forest learns, on tables of both worlds,
    from the answers to random queries about the target, its distance to the closest row, and all histograms.
    """
    target = _farthest(split.training)
    auxiliary = pd.concat([split.holdout, split.fresh(len(split.holdout))], ignore_index=True)
    features, worlds = [], np.tile([True, False], SHADOWS + SHADOWS // 2)
    count = auxiliary.shape[1]
    queries = [rng.choice(count, rng.integers(1, 5), replace=False) for _ in range(QUERIES)]
    edges = _edges(auxiliary)
    levels = {
        name: {word: code for code, word in enumerate(sorted(set(auxiliary[name].astype(str))))} for name in edges
    }
    numbers = auxiliary.select_dtypes("number").columns
    spread, is_word = auxiliary[numbers].std(), ~auxiliary.columns.isin(numbers)
    target_codes = _codes(target, edges, levels)[0]
    for is_inside in worlds:
        rows = auxiliary.sample(len(split.training), random_state=int(rng.integers(1 << 31)))
        if is_inside:
            rows = pd.concat([rows.iloc[1:], target])
        shadow = replace(split, training=rows.reset_index(drop=True))
        synth = generator(shadow, rng)
        codes = _codes(synth, edges, levels)
        agrees = codes == target_codes
        answers = [agrees[:, query].all(axis=1).mean() for query in queries]
        histograms = [np.bincount(column + 1, minlength=max(BINS, 45) + 2) / len(codes) for column in codes.T]
        gap = (np.abs(synth[numbers] - target[numbers].to_numpy()) / spread).to_numpy().sum(axis=1)
        closest = (gap + (~agrees[:, is_word]).sum(axis=1)).min()
        features.append(np.concatenate([answers, [closest], *histograms]))
    learned, inputs = 2 * SHADOWS, np.stack(features)
    forest = RandomForestClassifier(100, random_state=0).fit(inputs[:learned], worlds[:learned])
    return float(roc_auc_score(worlds[learned:], forest.predict_proba(inputs[learned:])[:, 1]))


def _farthest(rows: pd.DataFrame) -> pd.DataFrame:
    numbers = rows.select_dtypes("number")
    far = ((numbers - numbers.median()) / numbers.std()).abs().max(axis=1)
    return rows.loc[[far.idxmax()]]


def _edges(rows: pd.DataFrame) -> dict[str, Floats]:
    """Return quantiles of each column of numbers; none for words."""
    shares = np.linspace(0, 1, BINS + 1)[1:-1]
    numeric = set(rows.select_dtypes("number").columns)
    return {name: np.quantile(rows[name], shares) if name in numeric else np.empty(0) for name in rows.columns}


def _codes(
    rows: pd.DataFrame, edges: Mapping[str, Floats], levels: Mapping[str, Mapping[str, int]]
) -> NDArray[np.int64]:
    """Return bins and words as integers, shape (rows, columns); -1 for an unknown word."""
    columns = [
        np.searchsorted(cut, rows[name]) if cut.size else rows[name].astype(str).map(levels[name]).fillna(-1)
        for name, cut in edges.items()
    ]
    return np.column_stack(columns).astype(np.int64)


def lines_of(*functions: object) -> int:
    """Return the number of lines of code, without docstrings and blank lines."""
    total = 0
    for function in functions:
        source = inspect.getsource(function) if callable(function) else str(function)
        code = source.split('"""')
        total += sum(bool(line.strip()) for part in code[::2] for line in part.splitlines())
    return total


OWN_LINES = {
    "dpaudit synthetic": 1,
    "distance to closest record": lines_of(with_distances),
    "anonymeter": lines_of(ANONYMETER),
    "shadow models": lines_of(with_shadow_models, _farthest, _edges, _codes),
}


def cases(seeds: int, rows: str) -> Iterator[dict[str, Any]]:
    """Yield generator and number of each table."""
    yield from of_each([HONEST], seeds, by="generator")
    yield from of_each([name for name in GENERATORS if name != HONEST], TABLES, by="generator")


def run(generator: str, seed: int, rows: str) -> dict[str, Any]:
    """Return the value of each method on one table, and its seconds."""
    warnings.simplefilter("ignore")
    rng = np.random.default_rng([seed, list(GENERATORS).index(generator)])
    split = made_split(int(rows or 1_000), int(rng.integers(1 << 31)))
    tables = split.training, split.holdout, GENERATORS[generator](split, rng)

    def timed(method: Callable[..., float], *arguments: Any) -> tuple[float, float]:
        began = time.process_time()
        return method(*arguments), time.process_time() - began

    methods = {
        "dpaudit synthetic": timed(with_dpaudit, *tables),
        "distance to closest record": timed(with_distances, *tables),
        "shadow models": timed(with_shadow_models, split, GENERATORS[generator], rng),
        **with_anonymeter(*tables),
    }
    return {"methods": methods}


def groups(line: Mapping[str, Any]) -> Iterator[tuple[dict[str, str], tuple[str, str, float, float]]]:
    """Yield the row of each method."""
    for method, (value, seconds) in line["methods"].items():
        yield {"method": method}, (method, line["generator"], value, seconds)


def columns(tables: Sequence[tuple[str, str, float, float]]) -> dict[str, str]:
    """Return false alarms, power on each generator, seconds and lines of code."""
    by_generator = {name: np.array([value for _, of, value, _ in tables if of == name]) for name in GENERATORS}
    honest = np.sort(by_generator[HONEST])[::-1]
    threshold = honest[int(FALSE_ALARMS * honest.size)]
    return {
        **{name: f"{100 * np.mean(values > threshold):.1f} %" for name, values in by_generator.items() if values.size},
        "seconds": f"{np.mean([seconds for *_, seconds in tables]):.1f}",
        "lines of code": str(OWN_LINES[tables[0][0].partition(",")[0]]),
    }


if __name__ == "__main__":
    campaign(cases, run, columns, groups=groups, counted=False, seeds=40, settings={"rows": "training rows"})
