"""Examples of docs/reference/estimators.md, and the scores example of docs/quickstart.md, print what the pages say."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest
from click.testing import CliRunner

from dpaudit.engine.cli.main import main

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "estimators.md"


def test_python_examples() -> None:
    failed, tried = doctest.testfile(str(PAGE), module_relative=False)
    assert tried > 20
    assert not failed


def commands() -> list[tuple[str, str, str]]:
    """Return the table, the arguments and the output of each example in an indented block."""
    results = []
    for block in PAGE.read_text(encoding="utf-8").split("    $ cat table.csv\n")[1:]:
        lines = [line[4:] for line in block.partition("\n\n")[0].splitlines()]
        at = next(index for index, line in enumerate(lines) if line.startswith("$ dpaudit"))
        arguments = lines[at].removeprefix("$ dpaudit ")
        results.append(("\n".join(lines[:at]) + "\n", arguments, "\n".join(lines[at + 1 :])))
    return results


@pytest.mark.parametrize(("table", "arguments", "output"), commands(), ids=lambda word: str(word).splitlines()[0])
def test_command_line_examples(
    table: str, arguments: str, output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "table.csv").write_text(table)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, arguments.split(), catch_exceptions=False)
    assert result.output.rstrip() == output.rstrip()


QUICKSTART = PAGE.parents[1] / "quickstart.md"


def python_blocks(section: str) -> tuple[str, str]:
    """Return the Python of a section of the quickstart, and the indented block after it."""
    text = QUICKSTART.read_text(encoding="utf-8").partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    *blocks, last = text.split("```python\n")[1:]
    code, _, after = last.partition("```\n")
    codes = [block.partition("```")[0] for block in blocks] + [code]
    lines = after.lstrip("\n").split("\n\n")[0].splitlines()
    return "\n".join(codes), "\n".join(line.removeprefix("    ") for line in lines)


def test_the_scikit_learn_example_prints_its_output(capsys: pytest.CaptureFixture[str]) -> None:
    code, output = python_blocks("A scikit-learn model")
    exec(compile(code, str(QUICKSTART), "exec"), {})
    assert " ".join(capsys.readouterr().out.split()) == " ".join(output.split())
