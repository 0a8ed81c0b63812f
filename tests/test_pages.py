"""Pages: their tables agree with `docs/data`, every data file has a page, and every link leads to a page or a file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from dpaudit.registry import catalogue
from tests.loops import Cases
from tools.pages import Query, linked, origin_line, table, written
from tools.rows import DATA, Origin, Row, note_origin, origins, read_rows, setting, write

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
TEXTS = {page: page.read_text(encoding="utf-8") for page in PAGES}
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


def test_the_tables_of_every_page_agree_with_the_data() -> None:
    sources = origins()
    with Cases() as cases:
        for page, text in TEXTS.items():
            with cases.case(page.relative_to(ROOT)):
                assert text == written(text, page, sources), "run `make pages`"
                assert text.count("<!-- table") == text.count("<!-- end -->")


def test_a_number_changed_by_hand_is_detected() -> None:
    page = ROOT / "docs" / "statistics" / "calibration.md"
    text = page.read_text(encoding="utf-8")
    changed = text.replace("|20 of 400|", "|2 of 400|")
    assert changed != text
    assert written(changed, page, origins()) == text


def test_every_data_file_has_an_origin_and_a_page() -> None:
    files = {path.name for path in DATA.glob("*.csv")} - {"index.csv"}
    all_text = "".join(TEXTS.values())
    assert files == set(origins())
    assert [name for name in sorted(files) if f"data/{name})" not in all_text] == []


def test_every_data_file_holds_measurements() -> None:
    with Cases() as cases:
        for path in sorted(set(DATA.glob("*.csv")) - {DATA / "index.csv"}):
            with cases.case(path.name):
                rows = read_rows(path)
                assert rows
                for row in rows:
                    assert setting(row.settings()) == row.setting
                    assert row.what
                    assert row.value or row.interval


def broken_links(page: Path, text: str) -> Iterator[str]:
    """Relative links of a page that lead to no file, or to no heading of one."""
    for link in LINK.findall(without_code(text)):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        exists = target == page or target.exists()
        linked_text = text if target == page else target.read_text(encoding="utf-8") if exists and anchor else ""
        if not exists or (anchor and anchor not in anchors(linked_text)):
            yield link


def anchors(text: str) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ +(.*)$", without_code(text), re.MULTILINE)
    named = set(re.findall(r'<a id="([^"]+)"', text))
    return named | {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def without_code(text: str) -> str:
    """A page without its blocks of code."""
    return re.sub(r"```.*?```", "", re.sub(r"(?m)^ {4}.*$", "", text), flags=re.DOTALL)


def test_the_links_of_every_page_lead_somewhere() -> None:
    broken = {page.relative_to(ROOT).as_posix(): list(broken_links(page, text)) for page, text in TEXTS.items()}
    assert {page: links for page, links in broken.items() if links} == {}


def unexplained(text: str, terms: Mapping[str, str]) -> list[str]:
    """Terms that a page mentions in its sentences, outside links, without a link to the glossary."""
    prose = re.sub(r"`[^`]*`|\[[^\]]*\]\([^)]*\)|^[|#<].*$", "", without_code(text), flags=re.MULTILINE)
    return [anchor for anchor, term in terms.items() if re.search(term, prose) and f"glossary.md#{anchor})" not in text]


def test_pages_for_beginners_link_terms_to_the_glossary() -> None:
    terms = {
        "lp-1st": "LP-1ST",
        "lira": "LiRA|RMIA",
        "canary": "[Cc]anar(y|ies)",
        "proxy": "prox(y|ies)",
        "pate": "PATE",
    }
    terms |= {"accountant": "accountant", "spec": r"\bspec\b", "tpr": "AUC", "side-finding": "side finding"}
    first = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), ROOT / "docs" / "guides" / "python.md"]
    pages = [page for page in first if page.name not in ("glossary.md", "security.md", "install.md")]
    assert {page.name: missing for page in pages if (missing := unexplained(TEXTS[page], terms))} == {}
    assert unexplained("A canary, and a [proxy](glossary.md#proxy).", terms) == ["canary"]


def test_a_link_that_leads_nowhere_is_seen() -> None:
    text = (
        "# One heading\n\n[a](nowhere.csv) [b](#one-heading) [c](#two) [d](docs/security.md#none) [e](https://x.org)\n"
    )
    assert list(broken_links(ROOT / "README.md", text)) == ["nowhere.csv", "#two", "docs/security.md#none"]


def unreachable(pages: Mapping[Path, str]) -> list[str]:
    """Pages that no chain of links from the README leads to."""
    reached, waiting = set[Path](), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in pages and page not in reached:
            reached.add(page)
            names = [link.partition("#")[0] for link in LINK.findall(without_code(pages[page]))]
            waiting += [(page.parent / name).resolve() for name in names if name.endswith(".md")]
    return sorted(page.relative_to(ROOT).as_posix() for page in pages.keys() - reached)


def test_every_page_is_reached_from_the_readme() -> None:
    assert unreachable(TEXTS) == []
    assert unreachable({**TEXTS, ROOT / "docs" / "lost.md": "# Lost"}) == ["docs/lost.md"]


def missing_files(text: str) -> list[str]:
    """Files of the repository that a page names and that are not there."""
    named = re.findall(r"`((?:tests|benchmarks|examples|mechanisms|engine|docs)/[\w./-]+\.\w+)[`:]", text)
    return [name for name in dict.fromkeys(named) if not (ROOT / name).exists()]


def test_files_that_a_page_names_are_there() -> None:
    missing = {page.relative_to(ROOT).as_posix(): missing_files(text) for page, text in TEXTS.items()}
    assert {page: names for page, names in missing.items() if names} == {}


def test_a_file_that_is_not_there_is_seen() -> None:
    assert missing_files("`tests/test_pages.py` `tests/gone.py::test_it` `engine/gone.py`") == [
        "tests/gone.py",
        "engine/gone.py",
    ]


def test_paths_of_pages_in_the_sources_are_there() -> None:
    """Comments, messages and specs name pages by their path."""
    sources = [
        *(ROOT / "benchmarks").glob("*.py"),
        *(ROOT / "papers").glob("*.py"),
        *(ROOT / "examples").rglob("*.yaml"),
    ]
    named = {path for source in sources for path in re.findall(r"docs/[\w./-]+\.(?:md|png)", source.read_text("utf-8"))}
    assert len(named) > 3
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


MEASURED = [
    Row("game=mia; claim=1", "VIOLATION", "3", "", "400"),
    Row("game=mia; claim=1", "bound", "0.5", "± 0.1", "400"),
    Row("game=mia; claim=2", "VIOLATION", "0", "", "400"),
    Row("game=mia; claim=2", "bound", "", "(0.1, 0.7)", "400"),
]


def test_a_file_of_rows_is_read_as_it_was_written(tmp_path: Path) -> None:
    write(tmp_path / "rows.csv", MEASURED)
    assert read_rows(tmp_path / "rows.csv") == MEASURED


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("| rows: game | columns: claim | where: what = VIOLATION | cell: share", "|mia|3 of 400|0 of 400|"),
        ("| rows: game | where: what = VIOLATION | cell: sum", "|mia|3|"),
        ("| rows: game | where: what = VIOLATION | cell: max", "|mia|3|"),
        ("| rows: game | columns: value | where: what = VIOLATION | cell: count", "|mia|1|1|"),
        ("| rows: game | where: what = VIOLATION | cell: range", "|mia|0 to 3|"),
        ("| rows: claim | where: claim = 2 / 1; what = bound", "|2|(0.1, 0.7)|\n|1|0.5 ± 0.1|"),
    ],
)
def test_a_page_asks_for_a_table(query: str, expected: str) -> None:
    assert table(MEASURED, Query.of(query)).partition("-|\n")[2] == expected


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("| rows: game | columns: claim | where: claim = 3", "no measurement has claim"),
        ("| rows: games | columns: claim", "conditions"),
        ("| rows: game | where: what = VIOLATION", "2 measurements fall into one cell"),
        ("| rows: game | where: what = VIOLATION | cell: mean", "cell must be"),
        ("| rows: game | order: claim", "requested by"),
    ],
)
def test_a_wrong_question_is_refused(query: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        table(MEASURED, Query.of(query))


def test_a_condition_that_cannot_be_read_back_is_refused() -> None:
    with pytest.raises(ValueError, match="holds"):
        setting({"game": "mia; really 2"})


def test_an_origin_replaces_the_one_before(tmp_path: Path) -> None:
    first, second = (Origin("a.csv", "python -m a", date, "2 cores") for date in ("2026-11-21", "2026-11-22"))
    for origin in (first, Origin("b.csv", "python -m b", "", ""), second):
        note_origin(origin, tmp_path)
    assert origins(tmp_path) == {"a.csv": second, "b.csv": Origin("b.csv", "python -m b", "", "")}


def test_the_line_below_a_table_has_commands_date_and_commit() -> None:
    page, commands = ROOT / "docs" / "page.md", [f"dpaudit reproduce observational-label table-{n}" for n in (2, 5)]
    origin = Origin("a.csv", "; ".join(commands), "2026-11-26", "", "0123abcd")
    line = "[a](data/a.csv): `{}`, `{}`, 2026-11-26, commit 0123abcd".format(*commands)
    assert origin_line(origin, page) == line
    assert origin_line(Origin("a.csv", "written by hand", "", ""), page) == "[a](data/a.csv): `written by hand`"


def test_commands_stand_once_a_page() -> None:
    request = "<!-- table paper-ml-audit-copies.csv | rows: claim | columns: copies -->\n<!-- end -->\n"
    first, _, again = written(request + request, ROOT / "docs" / "page.md", origins()).partition("<!-- end -->")
    assert "`dpaudit reproduce ml-audit copies`, `python -m papers" in first
    assert "paper-ml-audit-copies.csv" in again
    assert "dpaudit reproduce" not in again


def test_a_cell_that_names_a_data_file_is_a_link_to_it() -> None:
    page = ROOT / "docs" / "results" / "page.md"
    assert linked("a.csv", page) == "[a](../data/a.csv)"
    request = "<!-- table paper-overview.csv | rows: item | where: item = `table-5`; what = data -->\n<!-- end -->\n"
    assert "|[paper-click-logs](../data/paper-click-logs.csv)|" in written(request, page, origins())


def test_the_estimators_and_the_rules_of_the_verdict_are_lists_of_the_code() -> None:
    blocks = "<!-- list of estimators -->\nSTALE\n<!-- end of list -->\n"
    blocks += "<!-- rules of the verdict -->\nSTALE\n<!-- end of rules -->\n"
    text = written(blocks, ROOT / "docs" / "page.md", origins())
    assert "STALE" not in text
    assert [name for name in catalogue("estimator") if f"| `{name}` |" not in text] == []
    assert "| NO VIOLATION FOUND |" in text
