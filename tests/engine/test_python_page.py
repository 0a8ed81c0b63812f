"""Every example of docs/python.md runs as it stands and says what the page says."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "python.md"
EXAMPLES = re.findall(r"```python\n(.*?)```\n\n((?:    [^\n]*\n)+)", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def test_the_page_has_its_examples() -> None:
    assert len(EXAMPLES) == PAGE.read_text(encoding="utf-8").count("```python")
    assert len(EXAMPLES) >= 3


@pytest.mark.ray
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("code", "output"), EXAMPLES, ids=range(len(EXAMPLES)))
def test_an_example_prints_what_stands_under_it(
    code: str, output: str, ray_cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "opacus" in code:
        pytest.importorskip("opacus")
    monkeypatch.chdir(tmp_path)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, str(PAGE), "exec"), {"__name__": "__main__"})
    assert told(printed.getvalue()) == told(output)


def told(text: str) -> str:
    """Verdict, bound and mechanism; the rest are counts and times."""
    return re.split(r" (?:guess-band|one-run|step-walk), ", " ".join(text.split()), maxsplit=1)[0]
