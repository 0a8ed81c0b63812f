"""`dpaudit init` writes a first spec, `dpaudit doctor` checks the machine."""

from __future__ import annotations

import importlib.metadata
import math
import os
import platform
import re
import shlex
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from dpaudit import __version__
from dpaudit.engine.cli.options import json_option
from dpaudit.engine.exits import RUN_FAILED, end, in_json, show_lines, tell
from dpaudit.errors import InputError, printable, shortened
from dpaudit.installation import requirements
from dpaudit.plain_files import max_read_bytes, must_write_in_place, require_writable, write_user_file
from dpaudit.registry import catalogue

_CLASS = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")  # package.module:Class
NEEDED = (
    "numpy",
    "scipy",
    "pyarrow",
    "pandas",
    "scikit-learn",
    "torch",
    "ray",
    "catboost",
    "numba",
    "matplotlib",
    "cloudpickle",
    "click",
    "rich",
    "jinja2",
    "PyYAML",
    "pydantic",
)
EXTRAS = (
    ("accounting", "dp-accounting", "dp-accounting", "claims given as an event of an accountant"),
    ("cluster", "aiohttp-cors", "ray[default]", "`dpaudit submit`, `logs` and `stop`"),
    ("diffprivlib", "diffprivlib", "", "models of diffprivlib"),
    ("endpoint", "tenacity", "tenacity", "language models and predictors behind an HTTP address"),
    ("finetuning", "trl", "trl", "audits of a fine-tuning by Trainer, SFTTrainer or PEFT"),
    ("mlflow", "mlflow-skinny", "mlflow-skinny", "`log_to_mlflow` and `dpaudit run --mlflow`"),
    ("opacus", "opacus", "opacus", "`from_opacus` and training by Opacus"),
    ("text", "transformers", "transformers", "local language models, and models that are fine-tuned"),
    ("wandb", "wandb", "wandb", "`log_to_wandb`"),
)
"""Name of each extra, a package that only this extra installs, the argument of `pip install`, and the purpose."""
SEPARATE_PYTHON = "`make diffprivlib` in a checkout installs it in a separate Python: it needs scikit-learn below 1.9"
MEMORY_GB, DISK_GB = 4.0, 2.0
"""With less than this, runs of the examples may fail."""

SPEC = """\
# The mechanism and its claim. `dpaudit list mechanisms` lists more names, `dpaudit show NAME` their fields;
# your own class is "package.module:Class".
name: {title}
seed: 7                 # seed of all randomness
mechanism: {mechanism}

# The private data. Your own file is {{name: csv, path: $MY_DATA/rows.csv, label: clicked}}.
data: {data}
split: {{target: 0.5, reference: 0.4, test: 0.1}}   # trained on; known to the attacker; held out for utility

# The game. `label-canaries` plants random labels, so its bound assumes nothing about the data. `label-inference` keeps
# the data unchanged, and its bound relies on the proxy. See docs/choose-a-game.md.
game: {{name: label-canaries, replays: 20}}
proxy: {{name: calibrated, model: logistic-regression}}

run: {{runner: auto}}   # in this process, or on Ray if that is faster; `address: ...` names a cluster

# dpaudit plan {file}         sensitivity and cost; nothing runs
# dpaudit run {file}          the verdict, and report.html
"""


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path), default=Path("audit.yaml"))
@click.option("--mechanism", help='A name of `dpaudit list mechanisms`, or "package.module:Class".')
@click.option("--epsilon", type=click.FloatRange(min=0, min_open=True), help="Claimed epsilon.")
@click.option("--data", help="A name of `dpaudit list data`, or a CSV file whose last column is the label.")
@json_option
def init(file: Path, mechanism: str | None, epsilon: float | None, data: str | None, as_json: bool) -> None:
    """Ask three questions and write a commented spec.

    Each option answers one question.
    """
    # `lexists` also refuses a dangling link, whose target must not be created.
    if os.path.lexists(file) and not must_write_in_place(file):
        raise InputError(f"{file} exists already. Give another name, `dpaudit init other.yaml`, or move it away")
    require_writable(file)
    if mechanism is None:
        tell("For functions on rows, scores and predictors, use `dpaudit check` and `dpaudit estimate` without a spec.")
        mechanism = click.prompt(
            "Which mechanism (lp-1st, randomized-response, dp-sgd, package.module:Class)", "lp-1st", err=True
        )
    is_own_class = _CLASS.fullmatch(mechanism) is not None
    if not is_own_class and mechanism not in catalogue("mechanism"):
        raise InputError(f"{shortened(mechanism)} must be a name of `dpaudit list mechanisms`, or package.module:Class")
    if is_own_class and epsilon is not None:
        raise InputError(
            f"--epsilon must be left out for your own class, got {epsilon:g}: the method `claim` of {mechanism} states "
            "its claim"
        )
    if is_own_class:
        tell(f"`dpaudit check {mechanism}` runs every game that fits; this spec runs one.")
    elif epsilon is None:
        epsilon = click.prompt(
            "Which epsilon does it claim", 1.0, type=click.FloatRange(min=0, min_open=True), err=True
        )
    if epsilon is not None and not math.isfinite(epsilon):
        raise InputError(f"epsilon must be a finite number > 0, got {epsilon}. Give the claim of the mechanism")
    if data is None:
        data = click.prompt("Which data (digits, iris, or a CSV file)", "digits", err=True)
    from dpaudit.engine.request.plain_yaml import to_yaml

    spec = SPEC.format(
        title=to_yaml(f"my audit of {mechanism}", flow=True),
        mechanism=to_yaml(mechanism if is_own_class else {"name": mechanism, "epsilon": epsilon}, flow=True),
        data=to_yaml(_data(data), flow=True),
        file=shlex.quote(printable(str(file))),
    )
    try:
        content = spec.encode()
    except UnicodeEncodeError as err:
        raise InputError(f"the file name must be valid UTF-8, got {shortened(data)}. Rename the file") from err
    write_user_file(file, content)
    show_lines(in_json({"file": str(file)}) if as_json else f"Wrote {file}. Next: dpaudit plan {file}")


def _data(words: str) -> dict[str, object]:
    """Return the `data` part of a spec for a registered name or a file."""
    if words in catalogue("data"):
        return {"name": words, **({"flat": True} if words == "digits" else {})}
    path = Path(words)
    if not path.is_file():
        raise InputError(f"the data must be a name of `dpaudit list data` or a CSV file, got {shortened(words)}")
    from dpaudit.engine.data.delimited import Text  # imports Arrow
    from dpaudit.engine.data.table_files import read_table

    columns = read_table(path, text=Text(), rows=1).columns.column_names
    return {"name": "csv", "path": str(path), "label": columns[-1]}


@click.command()
@click.option("--ray", "with_ray", is_flag=True, help="Also start Ray and run one task on it (10 s).")
@json_option
def doctor(with_ray: bool, as_json: bool) -> None:
    """Check the machine and list optional extras.

    The exit code is 3 if something is missing that runs need.
    """
    checks, extras = [], list(_extras())
    for passed, name, detail in _checks(with_ray):
        checks.append({"name": name, "ok": passed, "detail": detail})
        if not as_json:
            show_lines(f"{'ok     ' if passed else 'MISSING'} {name}: {detail}")
    lines = [f"{'ok     ' if extra.version else 'without'} extra {extra.name}: {extra.words}" for extra in extras]
    show_lines(in_json({"checks": checks, "extras": extras}) if as_json else "\n".join(lines))
    if not all(each["ok"] for each in checks):
        end(RUN_FAILED)


@dataclass(frozen=True)
class Extra:
    """An optional part of the installation."""

    name: str
    version: str  # "" if it is not installed
    words: str  # the version; or the purpose of the extra and how to install it


def _extras() -> Iterator[Extra]:
    """Yield the optional extras in the order of `docs/install.md`."""
    for name, package, install, purpose in EXTRAS:
        version = _version(package) or (_version("mlflow") if name == "mlflow" else "")
        if not version and name == "diffprivlib" and os.environ.get("DPAUDIT_DIFFPRIVLIB_PYTHON"):
            version = f"in {os.environ['DPAUDIT_DIFFPRIVLIB_PYTHON']}"
        how = f'pip install "{install}"' if install else SEPARATE_PYTHON
        words = f"{package} {version}" if version else f"not installed, needed for {purpose}; {how}"
        if lowest := _lowest(package, _version(package), name):
            version, words = "", f"{words} is too old for {purpose}; pip install '{package}>={lowest}'"
        yield Extra(name, version, words)


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _lowest(package: str, version: str, extra: str = "") -> str:
    """Return the lowest version of a package that dpaudit or its extra needs; "" if `version` is not below it."""
    from packaging.requirements import Requirement  # installed with matplotlib and Ray
    from packaging.version import Version

    for needed in map(Requirement, requirements() if version else []):
        if needed.name == package and (needed.marker is None or needed.marker.evaluate({"extra": extra})):
            limits = [limit.version for limit in needed.specifier if limit.operator in (">=", "==")]
            if any(Version(version) < Version(limit) for limit in limits):
                return max(limits, key=Version)
    return ""


def _checks(with_ray: bool) -> Iterator[tuple[bool, str, str]]:
    """Yield for each check whether it passed, its name and a detail."""
    yield sys.version_info >= (3, 11), "Python", f"{platform.python_version()} at {sys.executable}"
    yield True, "dpaudit", __version__
    needed = {re.split(r"[^\w-]", line)[0] for line in requirements() if "extra ==" not in line} or set(NEEDED)
    for package in (name for name in NEEDED if name in needed):
        version = _version(package)
        lowest = _lowest(package, version)
        words = f"{version} is too old; pip install '{package}>={lowest}'" if lowest else version
        yield bool(version) and not lowest, package, words or f"not installed; pip install {package}"
    yield True, "processors", f"{len(os.sched_getaffinity(0))} of {os.cpu_count()} usable"
    free_gb = 2 * max_read_bytes() / 1e9
    yield free_gb >= MEMORY_GB, "memory", f"{free_gb:.1f} GB free"
    free = shutil.disk_usage(".").free / 1e9
    yield free >= DISK_GB, "disk", f"{free:.1f} GB free here"
    yield (
        os.access(".", os.W_OK),
        "this folder",
        f"{Path.cwd()} can{'' if os.access('.', os.W_OK) else 'not'} be written",
    )
    try:
        import torch
    except ImportError as err:
        yield "torch" not in needed, "GPU", f"torch cannot be imported: {err}"
    else:
        gpus = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
        yield True, "GPU", ", ".join(gpus) or "none, everything runs on the CPU"
    if with_ray:
        yield from _ray()


def _ray() -> Iterator[tuple[bool, str, str]]:
    """Check that Ray runs a task, and list what units can request of its nodes."""
    from dpaudit.cluster.session import ray_session

    began = time.monotonic()
    try:
        with ray_session():
            import ray

            from dpaudit.actors.pool import Nodes

            ray.get(ray.remote(lambda: os.getpid()).remote())  # Ray refuses the built-in function
            seconds, nodes = time.monotonic() - began, Nodes.of_session()
    except Exception as err:  # Ray raises errors of many types
        yield False, "Ray session", f"{type(err).__name__}: {err}"
        return
    yield True, "Ray session", f"started and ran a task in {seconds:.1f} s"
    yield True, "Ray nodes", str(nodes)


FIRST_VERBS = (init, doctor)
