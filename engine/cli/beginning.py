"""Verbs for the first minutes: `init` writes a spec, `doctor` looks at the machine."""

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

from dpaudit.engine.exits import RUN_FAILED, end, show_lines, tell
from dpaudit.errors import InputError, printable, shortened
from dpaudit.plain_files import must_write_in_place, write_user_file
from dpaudit.registry import catalogue

_CLASS = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")  # package.module:Class
NEEDED = ("numpy", "scipy", "pyarrow", "pandas", "scikit-learn", "torch", "ray", "catboost", "numba", "matplotlib")
EXTRAS = (
    ("accounting", "dp-accounting", "dp-accounting", "claims that are an event of an accountant"),
    ("cluster", "aiohttp-cors", "ray[default]", "`dpaudit submit`, `logs` and `stop`"),
    ("diffprivlib", "diffprivlib", "", "models of diffprivlib"),
    ("endpoint", "tenacity", "tenacity", "language models and predictors behind an HTTP address"),
    ("mlflow", "mlflow-skinny", "mlflow-skinny", "`log_to_mlflow` and `dpaudit run --mlflow`"),
    ("opacus", "opacus", "opacus", "`from_opacus` and training by Opacus"),
    ("text", "transformers", "transformers", "local language models, and models that are fine-tuned"),
)
"""Of each extra: its name, a package that comes with it alone, what pip installs, and what it is for."""
OWN_PYTHON = "`make diffprivlib` in a checkout installs it, in a Python of its own, for it needs scikit-learn below 1.9"
MEMORY_GB, DISK_GB = 4.0, 2.0
"""Below which runs of the examples may fail."""

SPEC = """\
# What is audited, and what it promises. `dpaudit list mechanisms` has more names, `dpaudit show NAME` their fields;
# your own class is "package.module:Class".
name: {title}
seed: 7                 # everything random follows from it
mechanism: {mechanism}

# Whose privacy: your own file is {{name: csv, path: $MY_DATA/rows.csv, label: clicked}}.
data: {data}
split: {{target: 0.5, reference: 0.4, test: 0.1}}   # trained on; known to the attacker; held out for utility

# The game. `label-canaries` plants random labels, so that nothing has to be believed about the data;
# `label-inference` leaves the data as they are, and its bound rests on the proxy. See docs/choose-a-game.md.
game: {{name: label-canaries, replays: 20}}
proxy: {{name: model, model: logistic-regression}}

run: {{runner: auto}}   # in this process or on Ray, by how long it takes; `address: ...` names a cluster

# dpaudit plan {file}         what this could show, and what it costs; nothing runs
# dpaudit run {file}          the verdict, and report.html
"""


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path), default=Path("audit.yaml"))
@click.option("--mechanism", help='A name of `dpaudit list mechanisms`, or "package.module:Class".')
@click.option("--epsilon", type=click.FloatRange(min=0, min_open=True), help="What it claims.")
@click.option("--data", help="A name of `dpaudit list data`, or a CSV file whose last column is the label.")
def init(file: Path, mechanism: str | None, epsilon: float | None, data: str | None) -> None:
    """Asks three questions and writes a commented spec.

    What the options answer is not asked.
    """
    if os.path.lexists(file) and not must_write_in_place(
        file
    ):  # a link that leads nowhere too: its target is not ours to make
        raise InputError(f"{file} must not be there yet: give another name, `dpaudit init other.yaml`, or move it away")
    if mechanism is None:
        tell("Functions on rows, scores and predictors need no spec: `dpaudit check` and `dpaudit estimate`.")
        mechanism = click.prompt(
            "Which mechanism (lp-1st, randomized-response, dp-sgd, package.module:Class)", "lp-1st", err=True
        )
    own = _CLASS.fullmatch(mechanism) is not None
    if not own and mechanism not in catalogue("mechanism"):
        raise InputError(f"{shortened(mechanism)} must be a name of `dpaudit list mechanisms`, or package.module:Class")
    if own and epsilon is not None:
        raise InputError(
            f"--epsilon must be left out for a class of your own, got {epsilon:g}: {mechanism} says by its method "
            "`claim` what it promises"
        )
    if own:
        tell("`dpaudit check " + mechanism + "` plays every game that fits; this spec plays one.")
    elif epsilon is None:
        epsilon = click.prompt(
            "Which epsilon does it claim", 1.0, type=click.FloatRange(min=0, min_open=True), err=True
        )
    if epsilon is not None and not math.isfinite(epsilon):
        raise InputError(f"epsilon must be a finite number > 0, got {epsilon}; give what the mechanism claims")
    if data is None:
        data = click.prompt("Which data (digits, iris, or a CSV file)", "digits", err=True)
    from dpaudit.engine.request.plain_yaml import in_yaml

    spec = SPEC.format(
        title=in_yaml(f"my audit of {mechanism}", flow=True),
        mechanism=in_yaml(mechanism if own else {"name": mechanism, "epsilon": epsilon}, flow=True),
        data=in_yaml(_data(data), flow=True),
        file=shlex.quote(printable(str(file))),
    )
    try:
        content = spec.encode()
    except UnicodeEncodeError as err:
        raise InputError(f"the name of the data must be text in UTF-8, got {shortened(data)}; rename the file") from err
    write_user_file(file, content)
    show_lines(f"{file} is written. Next: dpaudit plan {file}")


def _data(words: str) -> dict[str, object]:
    """Return the part of a spec for a name or a file."""
    if words in catalogue("data"):
        return {"name": words, **({"flat": True} if words == "digits" else {})}
    path = Path(words)
    if not path.is_file():
        raise InputError(f"the data must be a name of `dpaudit list data` or a CSV file, got {shortened(words)}")
    from dpaudit.engine.data.delimited import first_record  # loads Arrow, which most answers do not need

    cells, _ = first_record(path, delimiter=",", quoted=True)
    return {"name": "csv", "path": str(path), "label": cells[-1]}


@click.command()
@click.option("--ray", "with_ray", is_flag=True, help="Also start Ray and run one task on it (10 s).")
def doctor(with_ray: bool) -> None:
    """Checks the machine and lists optional extras.

    Memory, GPU, Ray and versions are checked; extras that are not installed are named.

    Ends with 3 where something is missing that runs need.
    """
    missing = False
    for fine, what, found in _findings(with_ray):
        missing |= not fine
        show_lines(f"{'ok     ' if fine else 'MISSING'} {what}: {found}")
    for extra in _extras():
        show_lines(f"{'ok     ' if extra.version else 'without'} extra {extra.name}: {extra.words}")
    if missing:
        end(RUN_FAILED)


@dataclass(frozen=True)
class Extra:
    """An optional part of the installation."""

    name: str
    version: str  # "" if it is not installed
    words: str  # the version; or what the extra is for, and how to install it


def _extras() -> Iterator[Extra]:
    """The optional extras, as `docs/install.md` lists them, in the same order."""
    for name, package, install, purpose in EXTRAS:
        version = _version(package) or (_version("mlflow") if name == "mlflow" else "")
        if not version and name == "diffprivlib" and os.environ.get("DPAUDIT_DIFFPRIVLIB_PYTHON"):
            version = f"in {os.environ['DPAUDIT_DIFFPRIVLIB_PYTHON']}"
        how = f'pip install "{install}"' if install else OWN_PYTHON
        words = f"{package} {version}" if version else f"not installed; it is for {purpose}; {how}"
        yield Extra(name, version, words)


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _findings(with_ray: bool) -> Iterator[tuple[bool, str, str]]:
    """Whether it will do, what it is, and what was found."""
    yield sys.version_info >= (3, 11), "Python", f"{platform.python_version()} at {sys.executable}"
    for package in ("dpaudit", *NEEDED):
        version = _version(package)
        yield bool(version), package, version or f"not installed; pip install {package}"
    yield True, "processors", f"{len(os.sched_getaffinity(0))} of {os.cpu_count()} usable"
    yield _memory()
    free = shutil.disk_usage(".").free / 1e9
    yield free >= DISK_GB, "disk", f"{free:.1f} GB free here"
    yield (
        os.access(".", os.W_OK),
        "this folder",
        f"{Path.cwd()} can{'' if os.access('.', os.W_OK) else 'not'} be written",
    )
    yield _gpus()
    if with_ray:
        yield _ray()


def _memory() -> tuple[bool, str, str]:
    from dpaudit.plain_files import max_read_bytes

    found = 2 * max_read_bytes() / 1e9
    return found >= MEMORY_GB, "memory", f"{found:.1f} GB free"


def _gpus() -> tuple[bool, str, str]:
    """None is fine: everything runs without."""
    try:
        import torch
    except ImportError as err:
        return False, "GPU", f"torch cannot be imported: {err}"
    names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return True, "GPU", ", ".join(names) or "none, everything runs on processors"


def _ray() -> tuple[bool, str, str]:
    from dpaudit.cluster.session import ray_session

    began = time.monotonic()
    try:
        with ray_session():
            import ray

            ray.get(ray.remote(os.getpid).remote())
    except Exception as err:  # whatever Ray raises is what the user must see
        return False, "Ray session", f"{type(err).__name__}: {err}"
    return True, "Ray session", f"started, and a task ran, in {time.monotonic() - began:.1f} s"


FIRST_VERBS = (init, doctor)
