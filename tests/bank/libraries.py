"""Functions of third-party libraries: known defects, each in a version that has it, and honest functions.

A case names the Python that `make libraries` makes (`.venv-NAME/bin/python`), a function of `examples/libraries/`, and
the arguments of its audit. Honest twins with `clean` or `digits` are repaired and rounded: most of these libraries add
noise in floating point, whose low digits are a separate defect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dpaudit import Claim, Relation
from dpaudit.claims import GaussianDP

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "examples" / "libraries"
Schema = Mapping[str, Any]
X: Schema = {"x": (0.0, 1.0)}
"""Schema of one number."""
XY: Schema = {"x": (0.0, 1.0), "y": (0.0, 1.0)}
VALUE: Schema = {"value": (0.0, 1.0)}
KEYED: Schema = {"key": ["a", "b"], "value": (0.0, 1.0)}
BITS: Schema = {"x": (0, 1), "y": (0, 1)}
UPDATE: Schema = {"x": (-1.0, 1.0), "y": (-1.0, 1.0)}
LABELLED: Schema = {"x": (0.0, 1.0), "label": (0, 1)}


def replaced(epsilon: float, delta: float = 0.0) -> Claim:
    return Claim(epsilon, delta, Relation.REPLACE)


def added(epsilon: float, delta: float = 0.0) -> Claim:
    return Claim(epsilon, delta, Relation.ADD_REMOVE)


@dataclass(frozen=True)
class LibraryCase:
    """A function of a library, with its claim and its known defect.

    Attributes:
        python: Name of the environment `.venv-PYTHON` with the required version of the library.
        function: "module:name".
        form: Type of the table: "array", "frame", "records" or "list".
        schema: Schema of the table.
        claim: Audited claim with its relation.
        honest: True if the function has no defect.
        settings: Fixed arguments of the function; the search varies alternatives.
        leak: Description of the defect; "" for an honest case.
        pair: Description of two neighbouring tables that expose it; "" for an honest case.
        call_ms: Milliseconds of one call on fifty rows, on two busy cores.
        issue: Issue of the library; "" if there is none.
    """

    python: str
    function: str
    form: str
    schema: Schema
    claim: Claim
    honest: bool
    settings: Mapping[str, Any] = field(default_factory=dict)
    leak: str = ""
    pair: str = ""
    call_ms: float = 1.0
    issue: str = ""


def python_of(case: LibraryCase) -> Path:
    """Return the Python of `make libraries` for a case."""
    return ROOT / f".venv-{case.python}" / "bin" / "python"


def defect(python: str, function: str, form: str, schema: Schema, claim: Claim, **more: Any) -> LibraryCase:
    return LibraryCase(python, function, form, schema, claim, False, **more)


def honest(python: str, function: str, form: str, schema: Schema, claim: Claim, **more: Any) -> LibraryCase:
    return LibraryCase(python, function, form, schema, claim, True, **more)


MENDED = {"clean": True, "digits": 6}
GAUSSIAN = Claim.of(GaussianDP(1.0), relation=Relation.ADD_REMOVE, delta=1e-5)
IBM = "IBM/differential-privacy-library"
DIFFPRIVLIB = "diffprivlib_functions"
SYNTHESIZER = "data_synthesizer_functions"

LIBRARIES: dict[str, LibraryCase] = {
    "linear-regression": defect(
        *("diffprivlib", f"{DIFFPRIVLIB}:linear_regression", "array", XY, replaced(2.0)),
        leak="noise scaled to the lower bound only",
        pair="50 rows at (0, 0); one of them replaced by (1, 1)",
        settings={"fit_intercept": False},
        call_ms=30,
        issue=f"{IBM}#104, #105",
    ),
    "linear-regression, bounds (-1, 1)": honest(
        *("diffprivlib", f"{DIFFPRIVLIB}:linear_regression", "array", XY, replaced(2.0)),
        settings={"bounds": (-1.0, 1.0), "fit_intercept": False, **MENDED},
        call_ms=30,
    ),
    "nan-mean": defect(
        *("diffprivlib", f"{DIFFPRIVLIB}:nan_mean", "array", X, replaced(1.0)),
        leak="noise for all rows, mean over the rows that are numbers",
        pair="49 rows NaN and one at 0; the one at 1",
        call_ms=0.4,
    ),
    "nan-row": defect(
        *("diffprivlib", f"{DIFFPRIVLIB}:mean", "array", X, replaced(1.0)),
        leak="NaN passes the clipping",
        pair="50 rows at 0.5; one of them NaN",
        call_ms=0.4,
        issue=f"{IBM}#80",
    ),
    "domain-from-data": defect(
        *("diffprivlib", f"{DIFFPRIVLIB}:mean", "array", X, replaced(1.0)),
        leak="bounds taken from the data",
        pair="50 rows at 0.5; one of them at 1",
        settings={"bounds": None},
        call_ms=0.4,
    ),
    "mean, mended": honest(
        *("diffprivlib", f"{DIFFPRIVLIB}:mean", "array", X, replaced(1.0)), settings=MENDED, call_ms=0.4
    ),
    "quantile-underflow": defect(
        *("diffprivlib", f"{DIFFPRIVLIB}:quantile", "array", X, replaced(4.0)),
        leak="weights underflow to 0",
        pair="746 rows at 0; one of them at 1 (300 rows at epsilon 10, some 2,984 at epsilon 1)",
        settings={"epsilon": 4.0},
        call_ms=0.3,
        issue=f"{IBM}#107",
    ),
    "quantile, by logarithms": honest(
        *("diffprivlib", f"{DIFFPRIVLIB}:quantile_by_logarithms", "array", X, replaced(4.0)),
        settings={"epsilon": 4.0},
        call_ms=0.1,
    ),
    "float-laplace": defect(
        *("diffprivlib", f"{DIFFPRIVLIB}:total", "array", X, replaced(1.0)),
        leak="low digits of the noise",
        pair="10 rows at 0; one of them at 1: the lowest bit of the answer",
        call_ms=0.4,
        issue=f"{IBM}#19, #94",
    ),
    "count, geometric": honest(*("diffprivlib", f"{DIFFPRIVLIB}:count_above", "array", X, replaced(1.0)), call_ms=0.3),
    "k-means-empty-cluster": defect(
        *("diffprivlib", f"{DIFFPRIVLIB}:k_means", "array", X, replaced(2.0)),
        leak="clusters without rows",
        pair="50 rows at 0; one of them at 1",
        settings={"inertia": False},
        call_ms=4,
    ),
    "k-means-inertia": defect(
        *("diffprivlib", f"{DIFFPRIVLIB}:k_means", "array", X, replaced(2.0)),
        leak="inertia without noise",
        pair="50 rows at 0; one of them at 1: the inertia, less what 50 rows at 0 have from the nearest centre",
        call_ms=4,
    ),
    "k-means, patched": honest(
        *("diffprivlib", f"{DIFFPRIVLIB}:k_means_patched", "array", X, replaced(2.0)), call_ms=4
    ),
    "scaler-count": defect(
        *("diffprivlib", f"{DIFFPRIVLIB}:standard_scaler", "array", X, added(1.0)),
        leak="exact number of rows",
        pair="50 rows at 0.5; one fewer",
        call_ms=6,
    ),
    "scaler, rows counted in public": honest(
        *("diffprivlib", f"{DIFFPRIVLIB}:standard_scaler", "array", X, replaced(1.0)), settings=MENDED, call_ms=6
    ),
    "naive-bayes-counts": defect(
        *("diffprivlib", f"{DIFFPRIVLIB}:naive_bayes", "array", LABELLED, added(1.0)),
        leak="class counts that sum to the number of rows",
        pair="any two tables of both classes: the counts add up to the rows",
        settings={"counts": True},
        call_ms=10,
    ),
    "pipeline-dp-nan": defect(
        *("pipeline-dp", "pipeline_dp_functions:by_key", "records", KEYED, added(1.0, 1e-6)),
        leak="NaN passes the clipping",
        pair="50 values of 0.5; one more, NaN",
        call_ms=0.5,
    ),
    "pipeline-dp, mended": honest(
        *("pipeline-dp", "pipeline_dp_functions:by_key_without_nan", "records", KEYED, added(1.0, 1e-6)), call_ms=0.5
    ),
    "approx-bounds-infinity": defect(
        *("smartnoise-sql-1.0.0", "smartnoise_sql_functions:found_bounds", "frame", KEYED, added(1.0)),
        leak="an infinite value",
        pair="50 values of 0.5; one of them infinite",
        call_ms=70,
        issue="opendp/smartnoise-sdk#574, fixed by #580",
    ),
    "approx-bounds, 1.0.10": honest(
        *("smartnoise-sql", "smartnoise_sql_functions:found_bounds", "frame", KEYED, added(1.0)), call_ms=32
    ),
    "covariance-not-clipped": defect(
        *("smartnoise-synth-1.0.5", "smartnoise_synth_functions:covariance", "frame", XY, replaced(1.0)),
        leak="clipped values are not used",
        pair="50 rows at (0, 0); one of them at (100, 100), which is outside the range",
        call_ms=7,
        issue="opendp/smartnoise-sdk#622, fixed by #624",
    ),
    "covariance, 1.0.8": honest(
        *("smartnoise-synth", "smartnoise_synth_functions:covariance", "frame", XY, replaced(1.0)),
        settings=MENDED,
        call_ms=3,
    ),
    "flower-zero-update": defect(
        *("flower", "flower_functions:local_update", "array", UPDATE, replaced(1.0, 1e-5)),
        leak="an update of zero raises an error",
        pair="a row at (0, 0); the row at (1, 0)",
        settings={"sensitivity": 2.0},
        call_ms=0.4,
        issue="flwrlabs/flower#7631",
    ),
    "flower-sensitivity": defect(
        *("flower", "flower_functions:local_update", "array", UPDATE, replaced(1.0, 1e-5)),
        leak="noise for half of the sensitivity",
        pair="a row at (-1, 0); the row at (1, 0)",
        settings={"sensitivity": 0.1},
        call_ms=0.4,
    ),
    "flower, mended": honest(
        *("flower", "flower_functions:local_update_mended", "array", UPDATE, replaced(1.0, 1e-5)),
        call_ms=0.4,
    ),
    "data-synthesizer-seed": defect(
        *("data-synthesizer", f"{SYNTHESIZER}:description", "frame", VALUE, replaced(1.0)),
        leak="fixed seed",
        pair="50 values of 0.01; one of them 0.99",
        call_ms=11,
        issue="DataResponsibly/DataSynthesizer#46, merged, not released",
    ),
    "data-synthesizer-missing": defect(
        *("data-synthesizer", f"{SYNTHESIZER}:description", "frame", VALUE, replaced(1.0)),
        leak="exact share of missing values",
        pair="50 values of 0.01; one of them missing",
        settings={"fixed_seed": False},
        call_ms=11,
    ),
    "data-synthesizer-ends": defect(
        *("data-synthesizer", f"{SYNTHESIZER}:description", "frame", VALUE, replaced(1.0)),
        leak="exact smallest and largest value",
        pair="50 values of 0.01; one of them 0.99: the smallest and the largest value are told",
        settings={"fixed_seed": False, "ends": True},
        call_ms=11,
    ),
    "data-synthesizer, mended": honest(
        *("data-synthesizer", f"{SYNTHESIZER}:distribution", "frame", VALUE, replaced(1.0)), call_ms=12
    ),
    "data-synthesizer-conditional": defect(
        *("data-synthesizer-0.1.4", f"{SYNTHESIZER}:conditional", "frame", BITS, added(1.0)),
        leak="noise divided by the number of rows",
        pair="40 rows (0, 0) and 10 rows (1, 1); one of the 40 is (0, 1)",
        settings={"public_rows": True},
        call_ms=20,
        issue="DataResponsibly/DataSynthesizer#34",
    ),
    "data-synthesizer-conditional, 0.1.13": honest(
        *("data-synthesizer", f"{SYNTHESIZER}:conditional", "frame", BITS, added(1.0)),
        settings={"public_rows": True, "digits": 6},
        call_ms=20,
    ),
    "dpart-bounds": defect(
        *("dpart", "dpart_functions:independent", "frame", VALUE, added(1.0)),
        leak="bounds taken from the data",
        pair="50 values up to 0.49; the largest of them 1: how far the synthetic values reach",
        call_ms=25,
        issue="hazy/dpart#6, merged, not released",
    ),
    "dpart, public bins": honest(
        *("dpart", "dpart_functions:independent_of_public_bins", "frame", VALUE, added(1.0)), call_ms=20
    ),
    "eeprivacy-mean": defect(
        *("small-libraries", "small_libraries_functions:energy_mean", "list", VALUE, replaced(1.0)),
        leak="values are not clamped",
        pair="50 values of 0; one of them 50, which is outside the bounds",
        call_ms=0.1,
    ),
    "eeprivacy-mean, clipped": honest(
        *("small-libraries", "small_libraries_functions:energy_mean", "list", VALUE, replaced(1.0)),
        settings={"clip": True},
        call_ms=0.1,
    ),
    "one-sided-count": defect(
        *("small-libraries", "small_libraries_functions:count", "list", VALUE, added(1.0)),
        leak="noise with one sign only",
        pair="11 values above one half; one fewer",
        call_ms=0.1,
    ),
    "two-sided-count": honest(
        *("small-libraries", "small_libraries_functions:count", "list", VALUE, added(1.0)),
        settings={"two_sided": True},
        call_ms=0.1,
    ),
    **{
        f"opendp {version}, {name}": honest(python, f"opendp_functions:{name}", "array", X, added(1.0), call_ms=0.3)
        for python, version in (("opendp", "0.16.0"), ("opendp-0.15.1", "0.15.1"))
        for name in ("total", "mean", "count")
    },
    **{
        f"pydp, {name}": honest("python-dp", f"pydp_functions:{name}", "array", X, added(1.0), call_ms=0.1)
        for name in ("total", "mean", "count")
    },
    "smartnoise-sql, query": honest(
        *("smartnoise-sql", "smartnoise_sql_functions:query", "frame", KEYED, added(2.0, 1e-5)), call_ms=200
    ),
    "jax-privacy-float32": defect(
        *("jax-privacy", "jax_privacy_functions:gradient_step", "array", XY, GAUSSIAN),
        leak="low digits of the noise",
        pair="50 rows at (0, 0); one more at (1, 1): low bits of the sum",
        call_ms=15,
    ),
    "jax-privacy, rounded": honest(
        *("jax-privacy", "jax_privacy_functions:gradient_step", "array", XY, GAUSSIAN),
        settings={"digits": 3},
        call_ms=15,
    ),
}
