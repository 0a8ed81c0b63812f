"""Code blocks of the pages work unchanged: Python runs, commands parse, specs can be planned.

Separate tests cover pages of programs with their output (`ELSEWHERE`).
"""

from __future__ import annotations

import contextlib
import importlib
import io
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
from markdown_it import MarkdownIt
from pyarrow.csv import read_csv

from dpaudit import Verdict, load_spec
from dpaudit.engine.cli.main import main
from dpaudit.engine.cli.names import spec_schema
from dpaudit.engine.cli.pytest_plugin import DpAudit
from dpaudit.engine.data.bundled import Iris
from dpaudit.engine.planning.plan import make_plan
from dpaudit.engine.sweep.request import read_request
from dpaudit.errors import UnknownNameError, VerdictError
from dpaudit.estimators.bound import format_lower
from tests.engine.test_python_page import in_this_process
from tests.small import few_calls

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
ELSEWHERE = {
    "docs/developers/extending.md": "tests/test_extending.py",
    "docs/guides/fine-tuning.md": "tests/language_models/test_text_fine_tuning.py",
    "docs/guides/language-models.md": "tests/language_models/test_estimate_text.py",
    "docs/tutorials/lora.md": "tests/language_models/test_tutorial.py",
    "docs/guides/python.md": "tests/engine/test_python_page.py",
    "docs/guides/training.md": "tests/engine/test_training_audit.py",
    "docs/quickstart.md": "tests/engine/test_quickstart.py",
    "docs/reference/estimators.md": "tests/engine/test_documented.py",
}
LOCAL = "docs/guides/local-protocols.md"
PREDICTION = "docs/guides/private-prediction.md"
HERE = ("README.md", "docs/guides/functions.md", LOCAL, "docs/guides/ml-audit.md", PREDICTION, "docs/guides/sweeps.md")
BY_DAY = ("grr",)
"""Protocols of the guide that are audited by day, in seconds each."""
PROTOCOLS = ("grr", "unary", "olh", "subset", "hadamard", "rappor", "permanent_answers", "shuffled")


@dataclass(frozen=True)
class Block:
    """A block of code in a page."""

    page: str
    line: int
    language: str  # "" for an indented block
    text: str


def blocks_of(page: str, text: str) -> list[Block]:
    """Yield the blocks of a page, fenced or indented."""
    tokens = MarkdownIt().parse(text)
    return [
        Block(page, token.map[0] + 1, token.info, token.content)
        for token in tokens
        if token.type in ("fence", "code_block") and token.map
    ]


BLOCKS = [
    block for page in PAGES for block in blocks_of(page.relative_to(ROOT).as_posix(), page.read_text(encoding="utf-8"))
]


def python_of(page: str) -> list[str]:
    return [block.text for block in BLOCKS if block.page == page and block.language == "python"]


def write_files(page: str, folder: Path, *, all_are_files: bool = True) -> None:
    """Write the blocks of a page that begin with a file name to these files."""
    for text in python_of(page):
        name = re.match(r"# (\w+\.py)\n", text)
        assert name or not all_are_files, f"{page}: which file is this?\n{text}"
        if name:
            (folder / name[1]).write_text(text, encoding="utf-8")


def test_every_block_has_a_test_or_a_known_language() -> None:
    assert {block.page for block in BLOCKS if block.language == "python"} == {*ELSEWHERE, *HERE}
    assert {block.language for block in BLOCKS} == {"", "python", "yaml"}
    for page, test in ELSEWHERE.items():
        assert Path(page).name in (ROOT / test).read_text(encoding="utf-8")


def test_the_first_lines_of_the_readme_print_what_it_shows() -> None:
    """Lines of the block that end in "..." are shortened."""
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    expected_lines = blocks_of("README.md", page)[1].text.splitlines()
    lines = printed(python_of("README.md")[0]).splitlines()
    assert expected_lines[-1].strip() == "..."
    for line, expected in zip(lines, expected_lines[:-1], strict=False):
        assert line.startswith(expected.removesuffix("...")), line
    assert lines[len(expected_lines) - 1 :], "the block ends in ..., so something must be left out"


@pytest.mark.filterwarnings("ignore")
def test_the_functions_of_the_guide_are_refuted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By day with fewer calls."""
    few_calls(monkeypatch)
    write_files("docs/guides/functions.md", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for checks in ("check_it", "check_dates", "check_visits"):
        importlib.import_module(checks)
    with pytest.raises(VerdictError, match="VIOLATION"):
        importlib.import_module("test_noisy").test_total_age(DpAudit(0.001, 0, tmp_path))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.nightly] * (name not in BY_DAY)) for name in PROTOCOLS]
)
def test_a_local_protocol_passes_and_its_mistake_does_not(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page gives these verdicts; the check has the seed 0, as there."""
    write_files(LOCAL, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for module in ("local_protocols", "audit_local"):
        sys.modules.pop(module, None)
    guide = importlib.import_module("audit_local")
    assert [protocol.__name__ for protocol in guide.MISTAKES] == list(PROTOCOLS)
    passed, mistaken = guide.verdicts(getattr(guide, name))
    assert passed is Verdict.NO_VIOLATION
    assert mistaken is Verdict.VIOLATION


@pytest.fixture
def predictions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder with the files of the guide of private prediction."""
    write_files(PREDICTION, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_a_snapshot_shows_the_bound_of_the_guide(predictions: Path) -> None:
    module = importlib.import_module("votes_of_runs")
    laws = [module.noisy_argmax_probabilities([[9 - k, k], [8 - k, k + 1]], 3.0) for k in (4, 5)]
    without, with_record = 0.98 * laws[0] + 0.02 * laws[1]
    truth = max(np.log(with_record[1] / without[1]), np.log(without[0] / with_record[0]))
    assert format_lower(float(truth), 3) == "0.379"
    assert format_lower(module.bound.lower, 2) == "0.32"


def test_an_embedding_moves_the_mean_by_its_sensitivity(predictions: Path) -> None:
    """The noise of the guide is that of 1-GDP; its mistake adds half of it."""
    guide = importlib.import_module("embeddings")
    rows = np.array([[1.0, 0.0, 0.0]] * 4)
    means = [
        np.mean([guide.mean_embedding(sign * rows[:1], np.random.default_rng(n)) for n in range(4_000)], axis=0)
        for sign in (1, -1)
    ]
    assert np.linalg.norm(means[0] - means[1]) == pytest.approx(2.0, abs=1e-9)
    for settings, deviation in (({}, 2.0), (guide.MISTAKE, 1.0)):
        values = [guide.mean_embedding(rows[:1], np.random.default_rng(n), **settings) for n in range(4_000)]
        assert np.std(values, axis=0) == pytest.approx([deviation] * 3, rel=0.1)


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")
def test_an_aggregation_of_embeddings_passes_and_its_mistake_does_not(predictions: Path) -> None:
    guide = importlib.import_module("embeddings")
    assert guide.audit().joint.verdict is Verdict.NO_VIOLATION
    assert guide.audit(**guide.MISTAKE).joint.verdict is Verdict.VIOLATION


def test_the_poisoning_of_the_guide_flips_the_middle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files("docs/guides/ml-audit.md", tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    poisoning = importlib.import_module("my_poisoning").MiddleFlip()
    worlds = poisoning.worlds(Iris().load(), 2, np.random.default_rng(0))
    alone, alone_there = worlds.in_d & ~worlds.in_d_prime, worlds.in_d_prime & ~worlds.in_d
    assert (alone.sum(), alone_there.sum(), len(worlds.world_zero), len(worlds.world_one)) == (2, 2, 150, 150)
    assert (worlds.rows.labels[alone] != worlds.rows.labels[alone_there]).all()
    assert np.array_equal(worlds.rows.features[alone], worlds.rows.features[alone_there])


@pytest.mark.filterwarnings("ignore")
def test_the_sweep_of_the_guide_names_its_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpaudit.engine.run.driver.backend_for", in_this_process)
    monkeypatch.setattr("dpaudit.engine.sweep.running.ray_session", lambda address: contextlib.nullcontext())
    monkeypatch.chdir(tmp_path)
    assert printed(python_of("docs/guides/sweeps.md")[0]).startswith("{'mechanism.epsilon': 2")


def printed(code: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, "page", "exec"), {"__name__": "__main__"})
    return out.getvalue()


def commands_of(text: str) -> Iterator[str]:
    """Return the lines of a block that call dpaudit, with continued lines joined."""
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        if match := re.match(r"(?:\$ )?dpaudit (?=\w)", line):
            yield line[match.end() :]


COMMANDS = [(f"{block.page}:{block.line}", line) for block in BLOCKS for line in commands_of(block.text)]
INLINE = [
    (page.relative_to(ROOT).as_posix(), line)
    for page in PAGES
    for line in re.findall(r"`dpaudit ([a-z][^`;\n]*)", page.read_text(encoding="utf-8"))
]


def refused(line: str, *, whole: bool) -> str:
    """Return the command line's error for a command, "" if there is none; with `whole`, the command is complete."""
    words = shlex.split(line.partition(" > ")[0], comments=True)
    words = [word for word in words if not re.fullmatch(r"\[[^:]*|[^:]*\]", word)]
    command: click.Command = main
    context = click.Context(main)
    try:
        while isinstance(command, click.Group) and words:
            name, subcommand, words = command.resolve_command(context, words)
            assert subcommand is not None
            context, command = click.Context(subcommand, context, name), subcommand
        command.parse_args(context, list(words))
    except click.MissingParameter as error:
        return str(error) if whole else ""
    except (click.ClickException, UnknownNameError) as error:
        return str(error)
    missing = [word for word in words if word.startswith("examples/") and not (ROOT / word).exists()]
    return f"no file {missing[0]}" if missing else ""


def test_the_command_line_takes_the_commands_of_the_pages() -> None:
    assert len(COMMANDS) > 45
    assert len(INLINE) > 30
    assert {where: words for where, line in COMMANDS if (words := refused(line, whole=True))} == {}
    assert {(where, line): words for where, line in INLINE if (words := refused(line, whole=False))} == {}


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("rnu spec.yaml", "did you mean"),
        ("run spec.yaml --outptu here", "No such option"),
        ("run", "Missing parameter: spec"),
        ("run examples/gone.yaml", "no file"),
        ("submit spec.yaml", "Missing parameter: output"),
    ],
)
def test_a_command_that_is_none_is_seen(line: str, why: str) -> None:
    assert why in refused(line, whole=True)


def spec_of(text: str) -> dict[str, Any]:
    """Return the mapping in a block if its keys are fields of a spec."""
    with contextlib.suppress(yaml.YAMLError):
        spec = yaml.safe_load(text)
        if isinstance(spec, dict) and spec.keys() <= spec_schema()["properties"].keys():
            return spec
    return {}


SPECS = [
    pytest.param(block.text, id=f"{block.page}:{block.line}")
    for block in BLOCKS
    if block.language == "yaml" or (not block.language and re.match(r"\w+: ", block.text) and spec_of(block.text))
]
BASE: dict[str, Any] = {
    "mechanism": {"name": "lp-1st", "epsilon": 1.0, "model": {"name": "mlp", "epochs": 20}},
    "data": {"name": "digits", "flat": True},
    "game": "label-canaries",
}


def planned(text: str, folder: Path) -> int:
    """Return the number of units of a spec on a page; a partial spec is completed first."""
    content = spec_of(text)
    if "check" not in content:
        content = {**BASE, **content}
    if "sweep" in content:
        content.setdefault("grid", {"mechanism.epsilon": [1, 2]})
    if "neighbours" in str(content.get("game")):
        content["mechanism"] = {"name": "gaussian-naive-bayes", "epsilon": 1.0}
    path = folder / "spec.yaml"
    path.write_text(yaml.safe_dump(content))
    if "sweep" not in content:
        return len(make_plan(load_spec(path)).units)
    request = read_request(path)
    return len(make_plan(request.spec(request.configurations)).units)


@pytest.mark.parametrize("text", SPECS)
def test_a_spec_of_a_page_can_be_planned(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = "\n".join(f"{row % 7},{row % 11},{int(row % 3 == 0)}" for row in range(300))
    (tmp_path / "clicks.csv").write_text(f"age,visits,clicked\n{rows}\n")
    (tmp_path / "shards").mkdir()
    pq.write_table(read_csv(tmp_path / "clicks.csv"), tmp_path / "shards" / "day_0.parquet")
    monkeypatch.setenv("MY_DATA", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    for page in HERE:
        write_files(page, tmp_path, all_are_files=False)
    assert planned(text, tmp_path) > 1


def test_a_spec_that_is_none_is_seen(tmp_path: Path) -> None:
    assert len(SPECS) >= 7
    with pytest.raises(Exception, match="replay"):
        planned("game: {name: label-canaries, replay: 100}", tmp_path)
