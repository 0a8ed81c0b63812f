"""Generate the reference and the tables of the pages, from the code and `docs/data/*.csv`; `make pages` runs it.

    python -m tools.pages

A page requests a table by a line such as

    <!-- table false-violations.csv | rows: game, claim | columns: proxy | where: what = VIOLATION | cell: share -->

The text between that line and `<!-- end -->` is generated: the table, and below it the file's origin. Commands appear
once a page. `index.csv` also has the machine. `tests/test_pages.py` compares the pages with the data.

- `rows`, `columns`: names of conditions, `what`, or `value`. The default of `columns` is `what`.
- `where`: conditions joined by `;`, each with its values joined by `/`. Values also order rows and columns.
- `cell`: how to combine several measurements: `each` (there must be one), `max`, `range`, `sum`, `count`, `share`
  ("3 of 400").
- A cell that names a data file becomes a link to it.
- `<!-- rules of the verdict -->` requests the rules in `engine/answer/verdict.py`.
- `<!-- list of estimators -->` requests the registered estimators.
- `<!-- strongest games -->` requests the strongest game for each kind of learner.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools import reference
from tools.rows import DATA, Origin, Row, origins, read_rows
from tools.sentences import OVERVIEW, with_agreement

DOCS = DATA.parent
NAMED = re.compile(r"[\w-]+\.csv")
COMMAND = re.compile(r"; (?=(?:dpaudit|python|make) )")
RULES_BLOCK = re.compile(r"(<!-- rules of the verdict -->\n).*?(<!-- end of rules -->)", re.DOTALL)
ESTIMATORS_BLOCK = re.compile(r"(<!-- list of estimators -->\n).*?(<!-- end of list -->)", re.DOTALL)
STRONGEST_BLOCK = re.compile(r"(<!-- strongest games -->\n).*?(<!-- end of games -->)", re.DOTALL)
BLOCK = re.compile(r"(<!-- table (\S+?) *((?:\|[^\n]*?)?) *-->\n).*?(<!-- end -->)", re.DOTALL)


@dataclass(frozen=True)
class Query:
    """A request for a table of a data file.

    Attributes:
        rows: Conditions that label a row.
        columns: The condition that labels a column, or `what`.
        where: Allowed values by condition; empty where all are.
        cell: One of `each`, `max`, `range`, `sum`, `count`, `share`.
    """

    rows: tuple[str, ...]
    columns: str
    where: Mapping[str, tuple[str, ...]]
    cell: str

    @staticmethod
    def of(text: str) -> Query:
        """Parse `| rows: a, b | columns: c | where: d = e / f | cell: max`."""
        parts = dict(re.split(r": *", part.strip(), maxsplit=1) for part in text.split("|") if part.strip())
        unknown = parts.keys() - {"rows", "columns", "where", "cell"}
        if unknown:
            raise ValueError(f"a table is requested by rows, columns, where and cell, got {sorted(unknown)}")
        pairs = [part.split("=", 1) for part in parts.get("where", "").split(";") if part.strip()]
        where = {name.strip(): tuple(value.strip() for value in values.split(" / ")) for name, values in pairs}
        rows = tuple(name.strip() for name in parts["rows"].split(","))
        return Query(rows, parts.get("columns", "what"), where, parts.get("cell", "each"))

    def allows(self, conditions: Mapping[str, str]) -> bool:
        """True if a measurement belongs in the table."""
        return all(conditions.get(name) in values for name, values in self.where.items())


def table(rows: Sequence[Row], query: Query) -> str:
    """Return a Markdown table of the requested measurements."""
    measurements = [(row.settings() | {"what": row.what, "value": row.value}, row) for row in rows]
    selected = [(conditions, row) for conditions, row in measurements if query.allows(conditions)]
    for name, values in query.where.items():
        present = {conditions.get(name) for conditions, _ in measurements}
        if not present.issuperset(values):
            raise ValueError(f"no measurement has {name} = {sorted(set(values) - present)}")
    if not selected:
        raise ValueError(f"no measurement matches {query}")
    unknown = {*query.rows, query.columns} - {name for conditions, _ in selected for name in conditions}
    if unknown:
        raise ValueError(f"no measurement has the conditions {sorted(unknown)}")
    cells: dict[tuple[str, ...], dict[str, list[Row]]] = {}
    for conditions, row in selected:
        labels = tuple(conditions.get(name, "") for name in query.rows)
        cells.setdefault(labels, {}).setdefault(conditions.get(query.columns, ""), []).append(row)
    columns = _ordered([column for row in cells.values() for column in row], query.where.get(query.columns, ()))
    lines = [[*query.rows, *columns], ["-"] * (len(query.rows) + len(columns))]
    lines += [
        [*labels, *(_cell(cells[labels].get(column, []), query.cell) for column in columns)]
        for labels in _sorted(list(cells), query)
    ]
    return "\n".join(f"|{'|'.join(line)}|" for line in lines)


def _ordered(names: Sequence[str], order: Sequence[str]) -> list[str]:
    return list(dict.fromkeys([name for name in order if name in names] + list(names)))


def _sorted(rows: list[tuple[str, ...]], query: Query) -> list[tuple[str, ...]]:
    """Sort rows by the values of `where`, from the left; without `where` keep the order of the file."""
    if not query.where.keys() & set(query.rows):
        return rows
    orders = [
        _ordered(labels, query.where.get(name, ()))
        for name, labels in zip(query.rows, zip(*rows, strict=True), strict=True)
    ]
    return sorted(rows, key=lambda row: [order.index(label) for order, label in zip(orders, row, strict=True)])


def _cell(rows: Sequence[Row], how: str) -> str:
    if not rows:
        return ""
    if how == "each":
        if len(rows) > 1:
            raise ValueError(f"{len(rows)} measurements fall into one cell: {rows[:2]}")
        return " ".join(part for part in (rows[0].value, rows[0].interval) if part)
    if how == "count":
        return str(len(rows))
    values = {_number(row.value): row.value for row in rows}
    if how == "max":
        return values[max(values)]
    if how == "range":
        low, high = values[min(values)], values[max(values)]
        return low if low == high else f"{low} to {high}"
    if how == "sum":
        return f"{sum(_number(row.value) for row in rows):,.0f}"
    if how == "share":
        return f"{sum(_number(row.value) for row in rows):,.0f} of {sum(_number(row.trials) for row in rows):,.0f}"
    raise ValueError(f"cell must be each, max, range, sum, count or share, got {how}")


def _number(text: str) -> float:
    match = re.match(r"[-+]?[\d,]*\.?\d+(?:e-?\d+)?", text.strip())
    if match is None:
        raise ValueError(f"not a number: {text!r}")
    return float(match[0].replace(",", ""))


def origin_line(origin: Origin, page: Path, *, commands: bool = True) -> str:
    """Return the line below a table: a link to its data file, the commands that wrote it, date and commit."""
    programs = [f"`{program}`" for program in COMMAND.split(origin.program)] if commands else []
    commit = f"commit {origin.commit}" if origin.commit else ""
    facts = (*programs, origin.made, commit)
    return f"{linked(origin.file, page)}: " + ", ".join(fact for fact in facts if fact)


def linked(file: str, page: Path) -> str:
    """Return a link from a page to a data file."""
    path = os.path.relpath(DATA / file, page.parent).replace(os.sep, "/")
    return f"[{file.removesuffix('.csv')}]({path})"


def written(text: str, page: Path, sources: Mapping[str, Origin]) -> str:
    """Return the text of a page with its tables generated again."""
    explained: set[str] = set()

    def block(match: re.Match[str]) -> str:
        head, file, query, end = match.groups()
        origin = origin_line(sources[file], page, commands=file not in explained)
        explained.add(file)
        if not query:
            return f"{head}{origin}\n{end}"
        rows = read_rows(DATA / file)
        cells = table(with_agreement(rows) if file == OVERVIEW else rows, Query.of(query))
        cells = NAMED.sub(lambda name: linked(name[0], page) if name[0] in sources else name[0], cells)
        return f"{head}\n{cells}\n\n{origin}\n\n{end}"

    text = RULES_BLOCK.sub(lambda match: f"{match[1]}{rules_table()}\n{match[2]}", text)
    text = ESTIMATORS_BLOCK.sub(lambda match: f"{match[1]}{estimators_table()}\n{match[2]}", text)
    text = STRONGEST_BLOCK.sub(lambda match: f"{match[1]}{strongest_games_table()}\n{match[2]}", text)
    return BLOCK.sub(block, text)


def rules_table() -> str:
    """Return the rules of the verdict as a Markdown table, in their order."""
    from dpaudit.engine.answer.verdict import RULES

    rows = [f"| {place} | {rule.when} | {rule.verdict} |" for place, rule in enumerate(RULES, 1)]
    return "\n".join(["| rule | applies if | verdict |", "| --- | --- | --- |", *rows])


def estimators_table() -> str:
    """Return the registered estimators as a Markdown table."""
    from dpaudit.registry import catalogue

    rows = [f"| `{name}` | {entry.summary} | {entry.source} |" for name, entry in catalogue("estimator").items()]
    return "\n".join(["| estimator | evidence and method | source |", "| --- | --- | --- |", *rows])


def strongest_games_table() -> str:
    """Return the strongest games for kinds of learners as a Markdown table."""
    from dpaudit.engine.request.strongest_games import LEARNER_KINDS

    rows = [
        f"| {kind.words} | {', '.join(map(str, kind.games))} | `{game}` | {kind.finds} |"
        for kind in LEARNER_KINDS
        for game in dict.fromkeys(kind.games.values())
    ]
    header = "| my learner is | relation of the claim | the strongest game is | it finds |"
    return "\n".join([header, "| --- | --- | --- | --- |", *rows])


def main() -> None:
    """Generate the pages of the reference, and the tables of every page, again."""
    for name, text in reference.pages().items():
        page = DOCS / name
        page.parent.mkdir(exist_ok=True)
        if not page.exists() or page.read_text(encoding="utf-8") != text:
            page.write_text(text, encoding="utf-8")
            print(page.relative_to(DOCS.parent))
    sources = origins()
    for page in sorted(DOCS.rglob("*.md")):
        before = page.read_text(encoding="utf-8")
        after = written(before, page, sources)
        if after != before:
            page.write_text(after, encoding="utf-8")
            print(page.relative_to(DOCS.parent))


if __name__ == "__main__":
    main()
