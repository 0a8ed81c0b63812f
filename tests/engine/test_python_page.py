"""Every example of docs/guides/python.md runs unchanged and prints the output on the page."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from dpaudit.actors.backend import InProcess
from dpaudit.actors.events import EventStream
from dpaudit.actors.storage.store import UnitStore
from dpaudit.actors.unit import Resources
from dpaudit.engine.planning.plan import Plan

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "python.md"
EXAMPLES = re.findall(r"```python\n(.*?)```\n\n((?:    [^\n]*\n)+)", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def test_the_page_has_its_examples() -> None:
    assert len(EXAMPLES) == PAGE.read_text(encoding="utf-8").count("```python")
    assert len(EXAMPLES) >= 3


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("code", "output", "on_ray"),
    [
        pytest.param(*EXAMPLES[0], True, marks=[pytest.mark.ray, pytest.mark.nightly], id="on Ray"),
        *(
            pytest.param(*example, False, marks=[pytest.mark.nightly] * (number > 0), id=str(number))
            for number, example in enumerate(EXAMPLES)
        ),
    ],
)
def test_an_example_prints_its_output(
    code: str,
    output: str,
    on_ray: bool,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Runs in this process, because workers start slowly. A nightly test runs one example on workers."""
    if on_ray:
        request.getfixturevalue("ray_cluster")
    else:
        monkeypatch.setattr("dpaudit.engine.run.driver.backend_for", in_this_process)
    if "opacus" in code:
        pytest.importorskip("opacus")
    monkeypatch.chdir(tmp_path)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, str(PAGE), "exec"), {"__name__": "__main__"})
    words, place = " ".join(printed.getvalue().split()), 0
    first, *others = (" ".join(part.split()) for part in output.split("    ...\n"))
    assert words.startswith(first)
    for part in others:
        place = words.find(part, place)
        assert place >= 0, part


@contextlib.contextmanager
def in_this_process(
    plan: Plan, missing: Mapping[Resources, int], events: EventStream, scratch: Path, store: UnitStore
) -> Iterator[InProcess]:
    yield InProcess(dict(plan.shared), scratch, events)
