"""Plain words, as far as a machine can check them: docstring openings, names, sentences and phrases of pages.

The checks know words, not meaning. `TOLERATED_NAMES` lists names that may stay. It can only shrink: a listed name
that no longer exists fails the test too.
"""

from __future__ import annotations

import ast
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tools import reference

ROOT = Path(__file__).parent.parent
CODE = (
    *("actors", "benchmarks", "cluster", "dpaudit", "engine", "estimators", "language_models", "mechanisms", "papers"),
    *("synthetic_tables", "tests", "tools"),
)
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs")

OPENING = re.compile(
    r"(What|Whether|How|Where|Who|Which|Whose|Of|For (a|those|one)|Nothing|As (many|much|it)|By (what|which)|"
    r"The same)\b"
)
"""Docstring openings that name neither a result nor an action."""
EMPTY_WORDS = frozenset(
    re.findall(
        r"\w+",
        "told said asked found one own known shown drawn held spared lost made given kept seen left taken read heard "
        "begun come gone done meant beside anew here there nowhere homeless apart elsewhere look looks",
    )
)
"""A name made of these words alone does not say what it holds. `play`, the method of games, is not among them."""
ODD_PHRASE = re.compile(
    r"\b(anew|besides?|at stake|for want of|spared|put together|held against|all the same|such as (it|they) (is|are)|"
    r"whereupon|thereby|wherein|thereof|therein|one's own|(some|any|no)body|whoever|whatever)\b",
    re.IGNORECASE,
)
DIARY = re.compile(
    r"\b(mended|measured again|used to be|has changed since|at first we|was tried again|until now|by now|so far we)\b",
    re.IGNORECASE,
)
"""Phrases that tell the history of a page rather than answer a question."""
LONGEST_SENTENCE = 32  # words, in a page

TOLERATED_NAMES: Mapping[str, str] = {
    "actors/storage/store.py": "read",
    "benchmarks/false_violations.py": "read",
    "tools/rows.py": "made",
    "engine/games/labels/label_crafted.py": "taken",
    "engine/games/labels/label_designs.py": "known",
    "engine/games/neighbours/poisonings/rows.py": "asked",
    "engine/games/predictions/adversaries.py": "asked",
    "engine/games/predictions/answer_laws.py": "one one one one",
    "engine/games/predictions/crafted_pairs.py": "asked",
    "engine/games/steps/step_probes.py": "left",
    "engine/games/two_world/attacks/gradients.py": "left",
    "engine/request/plain_yaml.py": "_read read",
    "estimators/counts.py": "read",
    "estimators/extraction/exposure.py": "read",
    "estimators/extraction/shares.py": "read read",
    "estimators/one_run/guess_band.py": "looks looks looks",
    "estimators/one_run/signed_scores.py": "read",
    "estimators/one_run/step_martingale.py": "looks",
    "estimators/private_prediction/answers_estimator.py": "asked asked asked",
    "estimators/private_prediction/rdp_bound.py": "read read",
    "estimators/two_world/confusion_tables.py": "read read",
    "estimators/two_world/fair_coins.py": "looks",
    "estimators/two_world/ratio.py": "read read",
    "mechanisms/predictors/prompt_pate.py": "given",
}
"""Names that may stay, by file: fields that are stored or requested by name, and methods that read a file."""


def violations_in_code(text: str) -> Iterator[str]:
    """Yield docstrings with an empty opening, empty names and odd phrases of docstrings in Python source `text`."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            docstring = node.value.value.strip()
            if opening := OPENING.match(docstring):
                yield f"docstring opens with {opening.group(0)!r}"
            yield from (f"phrase {phrase.group(0)!r}" for phrase in ODD_PHRASE.finditer(docstring))
        name = bound_name(node)
        words = [word.lower() for word in re.findall(r"[A-Za-z][a-z]*", name)]
        if words and EMPTY_WORDS.issuperset(words):
            yield f"name {name!r}"


def bound_name(node: ast.AST) -> str:
    """Return the name that a node of a syntax tree binds, "" if it binds none."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return node.name
    if isinstance(node, ast.arg):
        return node.arg
    return node.id if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) else ""


def violations_in_page(text: str) -> Iterator[str]:
    """Yield long sentences, odd phrases and diary phrases in the prose of a Markdown page."""
    for line in prose(text):
        yield from (f"phrase {phrase.group(0)!r}" for phrase in ODD_PHRASE.finditer(line))
        yield from (f"diary {phrase.group(0)!r}" for phrase in DIARY.finditer(line))
        for sentence in re.split(r"(?<=[.!?:])\s+", line):
            if (count := len(sentence.split())) > LONGEST_SENTENCE:
                yield f"{count} words: {sentence[:40]}"


def prose(text: str) -> Iterator[str]:
    """Yield the lines of a page outside code blocks, tables and comments; code and link targets become "X"."""
    in_block = False
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            in_block = not in_block
        elif not in_block and not line.startswith(("    ", "|", "<!--")):
            yield re.sub(r"\[([^]]*)\]\([^)]*\)|`[^`]*`", lambda match: match.group(1) or "X", line)


def files(roots: tuple[str, ...], suffix: str) -> Iterator[Path]:
    """Yield the files with `suffix` at or below the roots; symbolic links of folders are not followed."""
    for root in (ROOT / root for root in roots):
        if root.is_file():
            yield root
        for folder, _, names in os.walk(root):
            yield from (Path(folder, name) for name in sorted(names) if name.endswith(suffix))


def violations() -> dict[str, Counter[str]]:
    """Return the violations of each file that has any, by its path from the root of the repository."""
    by_file = dict.fromkeys(files(CODE, ".py"), violations_in_code)
    by_file |= dict.fromkeys(files(PAGES, ".md"), violations_in_page)
    for name in reference.pages():  # made of docstrings
        by_file.pop(ROOT / "docs" / name)
    counts = {
        path.relative_to(ROOT).as_posix(): Counter(check(path.read_text(encoding="utf-8")))
        for path, check in by_file.items()
    }
    return {path: count for path, count in counts.items() if count}


def test_the_project_speaks_plainly() -> None:
    expected = {path: Counter(f"name {name!r}" for name in names.split()) for path, names in TOLERATED_NAMES.items()}
    current = violations()
    new = {path: list((count - expected.get(path, Counter())).elements()) for path, count in current.items()}
    obsolete = {path: list((count - current.get(path, Counter())).elements()) for path, count in expected.items()}
    assert {path: entries for path, entries in new.items() if entries} == {}, "rewrite these in plain words"
    assert {path: entries for path, entries in obsolete.items() if entries} == {}, "remove these from TOLERATED_NAMES"


@pytest.mark.parametrize(
    ("text", "violation"),
    [
        ('def f():\n    """Whether it is so."""', "docstring opens with 'Whether'"),
        ('class C:\n    """What a run found."""', "docstring opens with 'What'"),
        ('x = 1\n"""Of the next run."""', "docstring opens with 'Of'"),
        ('"""Return the bound, computed anew."""', "phrase 'anew'"),
        ("def found(): ...", "name 'found'"),
        ("def f(*, told): ...", "name 'told'"),
        ("[one for one in range(3)]", "name 'one'"),
        ("class Asked: ...", "name 'Asked'"),
        ("as_told_here = kept_apart = 1", "name 'kept_apart'"),
    ],
)
def test_a_planted_violation_in_code_is_found(text: str, violation: str) -> None:
    assert list(violations_in_code(text)) == [violation]


def test_plain_code_has_no_violation() -> None:
    text = '"""Return what is left."""\ndef found_units(row, *, one_run): ...\nresult = "Whether"'
    assert list(violations_in_code(text)) == []


def test_a_planted_violation_in_a_page_is_found() -> None:
    page = f"It works; [mended](x) since. {'word ' * 33}end.\n\n```\nanew\n```\n| anew |\nRun `anew` anew."
    assert list(violations_in_page(page)) == ["diary 'mended'", f"34 words: {('word ' * 8)}", "phrase 'anew'"]
