"""Register, audit and verify functions of released libraries, each in a Python of its own: `docs/results/gallery.md`.

    make gallery
    python -m benchmarks.gallery RUNS.jsonl [--only NAME ...] [--seeds N] [--folder FOLDER] [--write]

A row is one function with a claim that its documentation states. `dpaudit check` registers it with a seed drawn at
random and runs it, and `dpaudit verify` checks the run folder, which is below FOLDER (default: build/gallery).
Functions whose Python is not installed (`make .venv-NAME/.installed`) are left out.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.campaign import campaign
from dpaudit import Claim, ResourceRequest, RunOptions, check
from dpaudit.claims import SIDE_SCOPES, GaussianDP, Relation, Scope
from dpaudit.engine.run.driver import resume
from dpaudit.engine.run.registration import RECEIPT, REGISTRATION
from dpaudit.engine.run.verifying import verify
from dpaudit.errors import AuditError, shortened
from dpaudit.plain_files import read_bytes
from tests.bank.__main__ import in_words
from tests.bank.libraries import FOLDER, GAUSSIAN, KEYED, LABELLED, ROOT, UPDATE, VALUE, XY, X, added, replaced

WHOLE = {"x": (0, 3)}
ONE_TO_FOUR = {"x": (1, 4)}
BITS = {"x": (0, 1)}
FOUR_BITS = {"a": (0, 1), "b": (0, 1), "c": (0, 1), "d": (0, 1)}
HOURS = {"value": (0.0, 120.0)}
SEX_AND_JOB = {"sex": ["f", "m"], "job": ["a", "b", "c"]}
LOCAL = "one user's value"
EPSILON = "docstring: `epsilon` is the privacy budget"
GUARANTEE = "docstring: `epsilon` is the privacy guarantee"
PARAMETER = "docstring: `epsilon` is the privacy parameter"
ARGUMENT = "argument `epsilon`"
IN_WORDS = {Scope.FLOATING_POINT: "low digits", Scope.BEYOND_SCHEMA: "rows beyond the schema"}
assert set(IN_WORDS) <= set(SIDE_SCOPES)


@dataclass(frozen=True)
class Released:
    """A function of a released library and its documented claim.

    Attributes:
        python: Name of the environment `.venv-PYTHON`.
        package: Name of the library on the index.
        called: What is called, in the library's own names.
        function: "module:name" in `examples/libraries`, which calls it.
        form: Type of the table.
        schema: Schema of the table.
        claim: Claim with its relation.
        source: Place where the library states the claim.
        unit: What one unit of privacy is.
        settings: Arguments of the function.
    """

    python: str
    package: str
    called: str
    function: str
    form: Any
    schema: Mapping[str, Any]
    claim: Claim
    source: str
    unit: str = "one row"
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def version(self) -> str:
        """Pinned version of the library."""
        return _versions(self.python)[self.package.lower()]


@cache
def _versions(python: str) -> dict[str, str]:
    """Return the pinned version of each package of an environment, by its name in lower case."""
    text = (ROOT / "requirements" / "libraries" / f"{python}.txt").read_text()
    return {name.lower(): version for name, version in re.findall(r"^([\w.-]+)==(\S+)$", text, re.MULTILINE)}


def _diffprivlib(
    called: str, name: str, schema: Any, claim: Claim, package: str = "diffprivlib", **settings: Any
) -> Released:
    function = f"diffprivlib_functions:{name}"
    return Released(package, package, called, function, "array", schema, claim, PARAMETER, settings=settings)


def _local(package: str, called: str, name: str, schema: Any, claim: Claim, source: str = "") -> Released:
    source = source or (GUARANTEE if package == "multi-freq-ldpy" else EPSILON)
    file = {"pure-ldp": "pure_ldp", "multi-freq-ldpy": "multi_freq_ldpy"}.get(package, "noisy_columns")
    function = f"{file}_functions:{name}"
    return Released("local-protocols", package, called, function, "array", schema, claim, source, LOCAL)


def _opendp(python: str, name: str) -> Released:
    called = {"total": "then_sum, then_laplace", "mean": "then_mean, then_laplace", "count": "then_count, then_laplace"}
    source = "`Measurement.map(1)` of the measurement that is called"
    return Released(python, "opendp", called[name], f"opendp_functions:{name}", "array", X, added(1.0), source)


def _pydp(algorithm: str, name: str) -> Released:
    source = ARGUMENT
    return Released("python-dp", "python-dp", algorithm, f"pydp_functions:{name}", "array", X, added(1.0), source)


def _synthesizer(python: str, called: str, name: str, claim: Claim, **settings: Any) -> Released:
    function, schema = f"data_synthesizer_functions:{name}", {"x": (0, 1), "y": (0, 1)}
    table = schema if name == "conditional" else VALUE
    source = "docstring: `epsilon` is a parameter in differential privacy"
    return Released(python, "DataSynthesizer", called, function, "frame", table, claim, source, settings=settings)


def _statistic(name: str, relation: Any = replaced) -> Released:
    function, source = "small_libraries_functions:statistic", EPSILON
    where = ("small-libraries", "diff-priv-laplace-python", f"DiffPrivStatistics.{name}", function, "list", VALUE)
    return Released(*where, relation(1.0), source, settings={"name": name})


GALLERY: tuple[Released, ...] = (
    _local("pure-ldp", "DEClient", "direct_encoding", ONE_TO_FOUR, replaced(1.0)),
    _local("pure-ldp", "UEClient, use_oue", "unary_encoding", ONE_TO_FOUR, replaced(1.0)),
    _local("pure-ldp", "HEClient", "histogram_encoding", ONE_TO_FOUR, replaced(1.0)),
    _local("pure-ldp", "LHClient, use_olh", "local_hashing", ONE_TO_FOUR, replaced(1.0)),
    _local("pure-ldp", "HadamardMechClient", "hadamard", ONE_TO_FOUR, replaced(1.0)),
    _local("pure-ldp", "CMSClient", "count_mean_sketch", ONE_TO_FOUR, replaced(1.0)),
    _local(
        *("pure-ldp", "RAPPORClient", "rappor", ONE_TO_FOUR, replaced(2.1973)),
        "`convert_f_to_eps(0.5, 1)`, and `RAPPORServer.epsilon`",
    ),
    _local("multi-freq-ldpy", "GRR_Client", "generalised_response", WHOLE, replaced(1.0)),
    _local("multi-freq-ldpy", "UE_Client, optimal", "oue", WHOLE, replaced(1.0)),
    _local("multi-freq-ldpy", "SS_Client", "subset_selection", WHOLE, replaced(1.0)),
    _local("multi-freq-ldpy", "HE_Client", "laplace_histogram", WHOLE, replaced(1.0)),
    _local("multi-freq-ldpy", "SPL_GRR_Client", "split_budget", FOUR_BITS, replaced(1.0)),
    _local("multi-freq-ldpy", "RSpFD_GRR_Client", "sampled_with_fakes", FOUR_BITS, replaced(1.0)),
    _local("multi-freq-ldpy", "RSpFD_UE_zero_Client", "sampled_with_zero_fakes", FOUR_BITS, replaced(1.0)),
    _local("trasgodp", "dp_clip_laplace_array", "clipped_laplace", X, replaced(1.0)),
    _local("trasgodp", "dp_clip_gaussian_array", "clipped_gaussian", X, replaced(1.0, 1e-3)),
    _local("trasgodp", "dp_randomized_response_binary_array", "binary_response", BITS, replaced(1.0)),
    _local("trasgodp", "dp_randomized_response_kary_array", "categorical_response", WHOLE, replaced(1.0)),
    _local("trasgodp", "dp_exponential_array", "exponential", WHOLE, replaced(1.0)),
    _local(
        *("insurance-fairness-ldp", "KaryRandomisedResponse", "fair_response", WHOLE, replaced(1.0)),
        "docstring of the module: the mechanism satisfies epsilon-LDP",
    ),
    _local(
        *("sdsa", "dp.laplace.apply_laplace", "sanitised_column", X, replaced(1.0)),
        "docstring of the module: scale = sensitivity / epsilon",
    ),
    _statistic("count"),
    _statistic("max"),
    _statistic("mean"),
    _statistic("proportion"),
    _statistic("sum"),
    _statistic("variance"),
    Released(
        *("small-libraries", "dp-group-stats", "laplace_noise, clip_actual", "small_libraries_functions:group_sum"),
        *("list", HOURS, added(1.0), "README, quick start: clipped sum with noise for `epsilon`"),
    ),
    Released(
        *("small-libraries", "eeprivacy", "PrivateClampedMean", "small_libraries_functions:energy_mean"),
        *("list", VALUE, replaced(1.0), ARGUMENT),
    ),
    Released(
        *("small-libraries", "eeprivacy", "PrivateClampedSum", "small_libraries_functions:energy_sum"),
        *("list", VALUE, replaced(1.0), ARGUMENT),
    ),
    Released(
        *("small-libraries", "diffpriv-pure", "private_count", "small_libraries_functions:count", "list", VALUE),
        *(added(1.0), ARGUMENT),
    ),
    _diffprivlib("tools.mean", "mean", X, replaced(1.0)),
    _diffprivlib("tools.nanmean", "nan_mean", X, replaced(1.0)),
    _diffprivlib("tools.mean, bounds=None", "mean", X, replaced(1.0), bounds=None),
    _diffprivlib("tools.sum", "total", X, replaced(1.0)),
    _diffprivlib("tools.var", "variance", X, replaced(1.0)),
    _diffprivlib("tools.quantile, epsilon 4", "quantile", X, replaced(4.0), epsilon=4.0),
    _diffprivlib("tools.histogram", "histogram", X, added(1.0)),
    _diffprivlib("tools.count_nonzero", "count_above", X, replaced(1.0)),
    _diffprivlib("mechanisms.Laplace", "laplace", X, added(1.0)),
    _diffprivlib("models.LinearRegression", "linear_regression", XY, replaced(2.0), epsilon=2.0, fit_intercept=False),
    _diffprivlib("models.LogisticRegression", "logistic_regression", LABELLED, replaced(1.0)),
    _diffprivlib("models.GaussianNB", "naive_bayes", LABELLED, added(1.0), counts=True),
    _diffprivlib("models.KMeans", "k_means", X, replaced(2.0), epsilon=2.0),
    _diffprivlib("models.StandardScaler", "standard_scaler", X, added(1.0)),
    _diffprivlib("models.RandomForestClassifier", "forest", LABELLED, added(1.0)),
    _diffprivlib("models.PCA", "pca", XY, replaced(1.0), count=False),
    _diffprivlib("tools.quantile, epsilon 4", "quantile", X, replaced(4.0), "diffprivlib-fix", epsilon=4.0),
    _diffprivlib("models.LogisticRegression", "logistic_regression", LABELLED, replaced(1.0), "diffprivlib-fix"),
    *(_opendp("opendp", name) for name in ("total", "mean", "count")),
    *(_opendp("opendp-0.15.1", name) for name in ("total", "mean", "count")),
    _pydp("BoundedSum", "total"),
    _pydp("BoundedMean", "mean"),
    _pydp("BoundedVariance", "variance"),
    _pydp("Median", "median"),
    _pydp("Count", "count"),
    Released(
        *("pipeline-dp", "pipeline-dp", "DPEngine.aggregate", "pipeline_dp_functions:by_key", "records", KEYED),
        *(added(1.0, 1e-6), "arguments `total_epsilon` and `total_delta` of `NaiveBudgetAccountant`", "one privacy id"),
    ),
    *(
        Released(
            *(python, "smartnoise-sql", "approx_bounds", "smartnoise_sql_functions:found_bounds", "frame", KEYED),
            *(added(1.0), EPSILON),
        )
        for python in ("smartnoise-sql", "smartnoise-sql-1.0.0")
    ),
    *(
        Released(
            *(python, "smartnoise-synth", "DPcovariance", "smartnoise_synth_functions:covariance", "frame", XY),
            *(replaced(1.0), ARGUMENT),
        )
        for python in ("smartnoise-synth", "smartnoise-synth-1.0.5")
    ),
    Released(
        *("flower", "flwr", "LocalDpMod", "flower_functions:local_update", "array", UPDATE, replaced(1.0, 1e-5)),
        *("docstring: `epsilon`, `delta`, and the sensitivity of the client model", "one client's update"),
    ),
    _synthesizer("data-synthesizer", "describe_dataset_in_independent_attribute_mode", "description", replaced(1.0)),
    _synthesizer(
        *("data-synthesizer", "construct_noisy_conditional_distributions", "conditional", added(1.0)), public_rows=True
    ),
    _synthesizer(
        *("data-synthesizer-0.1.4", "construct_noisy_conditional_distributions", "conditional", added(1.0)),
        public_rows=True,
    ),
    Released(
        *("dpart", "dpart", "engines.Independent", "dpart_functions:independent", "frame", VALUE, added(1.0)),
        ARGUMENT,
    ),
    Released(
        *("jax-privacy", "jax_privacy", "clipped_grad, gaussian_privatizer", "jax_privacy_functions:gradient_step"),
        *("array", XY, GAUSSIAN, "noise of 1.0 times `sensitivity()` of the clipped gradient is mu = 1"),
    ),
    Released(
        *("trainers", "opacus", "DPOptimizer", "opacus_functions:gradient_step", "array", XY),
        Claim.of(GaussianDP(1.0), relation=Relation.ADD_REMOVE, delta=1e-5),
        "noise multiplier of 1.0 times `max_grad_norm` is mu = 1",
    ),
    *(
        Released(
            *("data-synthesizer", "DataSynthesizer", called, "data_synthesizer_generators:Independent", "frame"),
            *(SEX_AND_JOB, added(1.0), "docstring: `epsilon` is a parameter in differential privacy"),
            settings=settings,
        )
        for called, settings in (
            ("independent mode", {}),
            ("independent mode, values given", {"domain": SEX_AND_JOB}),
        )
    ),
    Released(
        *("dpmm", "dpmm", "PrivBayesPipeline, values given", "dpmm_generators:PrivBayes", "frame", SEX_AND_JOB),
        *(added(1.0, 1e-5), "arguments `epsilon` and `delta`"),
        settings={"domain": SEX_AND_JOB},
    ),
)
BY_NAME = {f"{row.package} {row.version} {row.called}": row for row in GALLERY}
assert len(BY_NAME) == len(GALLERY)


def cases(seeds: int, folder: str) -> Iterator[dict[str, Any]]:
    """Yield the functions whose Python is installed."""
    for run in range(seeds):
        for name, row in BY_NAME.items():
            if (ROOT / f".venv-{row.python}" / "bin" / "python").exists():
                yield {"function": name, "run": run}


def run(function: str, run: int, folder: str) -> dict[str, Any]:
    """Register and check one function with an eighth of the usual calls, and verify the run folder."""
    row, place = BY_NAME[function], Path(folder or "build/gallery")
    place.mkdir(parents=True, exist_ok=True)
    output = place / f"{re.sub(r'[^a-z0-9]+', '-', function.lower())}-{run}"
    registry = place / "registrations.jsonl"
    options = RunOptions("in-process", figures=False, repeats=0, resources=ResourceRequest(1))
    try:
        if (output / REGISTRATION).exists():  # a run that was interrupted
            report = resume(output, quiet=True)
        else:
            report = check(
                row.function,
                claim=row.claim,
                schema=row.schema,
                relation=row.claim.relation,
                form=row.form,
                settings={name: [value] for name, value in row.settings.items()},
                python=str(ROOT / f".venv-{row.python}" / "bin" / "python"),
                folder=str(FOLDER),
                effort="quick",
                unit=row.unit,
                registry=registry,
                output=output,
                run=options,
                quiet=True,
            )
    except AuditError as err:
        return {"verdict": type(err).__name__, "headline": str(err)}
    joint = report.joint
    assert joint is not None
    test, answer = joint.deciding, joint.answer
    factor = None if test is None else test.sensitivity.factor
    maximum = None if test is None else test.sensitivity.maximum
    return {
        "verdict": joint.verdict.value,
        "headline": answer.headline,
        "bound": None if test is None else max(0.0, test.epsilon),
        "factor": factor,
        "maximum": None if maximum is None else getattr(maximum, "lower", None),
        "side": [scope.value for scope in answer.side],
        "lines": [list(line) for line in answer.to_dict()["lines"]],
        "seed": report.seed,
        **_verified(output, registry),
    }


def _verified(output: Path, registry: Path) -> dict[str, Any]:
    """Return whether a run is accepted with its registration, why not, and the hash of its receipt."""
    digest = (
        {"receipt": hashlib.sha256(read_bytes(output / RECEIPT)).hexdigest()} if (output / RECEIPT).exists() else {}
    )
    try:
        verification = verify(output, registry=registry)
    except AuditError as err:
        return {"verified": False, "why": str(err), **digest}
    return {"verified": True, "unknown": list(verification.unknown), **digest}


def groups(line: Mapping[str, Any]) -> list[tuple[dict[str, str], Mapping[str, Any]]]:
    """Return the row of a check."""
    row = BY_NAME[line["function"]]
    return [({"package": row.package, "version": row.version, "function": row.called}, line)]


def columns(checks: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the verdicts of all checks of a function, and bound, sensitivity and receipt of the first one."""
    line = checks[0]
    row, factor, maximum = BY_NAME[line["function"]], line.get("factor"), line.get("maximum")
    sides = [IN_WORDS[Scope(name)] for name in line.get("side", ()) if Scope(name) in IN_WORDS]
    return {
        "claim": claim_in_words(row.claim),
        "unit": row.unit,
        "source of the claim": row.source,
        "verdict": in_words(check["verdict"] for check in checks),
        "epsilon at least": "" if line.get("bound") is None else f"{line['bound']:.2f}",
        "detectable": "-" if factor is None or factor > 8 else f"noise / {factor:.2f}",
        "maximum detectable": "" if maximum is None else f"{maximum:.2f}",
        "also found": ", ".join(sides) or "-",
        "where": shortened(dict(line.get("lines", ())).get("where", "-").replace("|", "/"), 110),
        "verified": "yes" if all(check.get("verified") for check in checks) else "no",
        "receipt": line.get("receipt", "")[:16],
        "seed": str(line.get("seed", "")),
    }


def claim_in_words(claim: Claim) -> str:
    """Return a claim in the words of the table."""
    curve = claim.curve
    spent = f"mu {curve.mu:g}" if isinstance(curve, GaussianDP) else f"epsilon {claim.epsilon:g}"
    delta = "" if isinstance(curve, GaussianDP) or not claim.delta else f", delta {claim.delta:g}"
    return f"{spent}{delta}, {claim.relation.value}"


if __name__ == "__main__":
    campaign(
        *(cases, run, columns),
        groups=groups,
        counted=False,
        settings={"folder": "folder of the runs and of the registry"},
    )
