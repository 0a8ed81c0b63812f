"""Tables of the pages, made of `docs/data/*.csv`; `make pages` writes them, `tests/test_pages.py` holds them.

    python -m benchmarks.pages

A page asks for a table by a line such as

    <!-- table false-violations.csv | rows: game, claim | columns: proxy | where: what = VIOLATION | cell: share -->

and what stands between that line and `<!-- end -->` is written here, with the data's origin below it (`index.csv` also
has the machine), its commands once a page.

- `rows`, `columns`: names of conditions, or `what`. Left out, the columns are `what`.
- `where`: conditions joined by `;`, each with its values joined by `/`. Values also order rows and columns.
- A cell that names a data file leads to it, and says when it was made and whether its code has changed since.
- `<!-- rules of the verdict -->` asks for the rules in `engine/reading/verdict.py`.
- `cell`: how several measurements become one: `each` (there is only one), `max`, `range`, `sum`, `share` ("3 of 400").
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.rows import DATA, Origin, Row, origins, read
from benchmarks.versions import version_of

DOCS = DATA.parent
NAMED = re.compile(r"[\w-]+\.csv")
COMMAND = re.compile(r"; (?=(?:dpaudit|python|make) )")
RULES_BLOCK = re.compile(r"(<!-- rules of the verdict -->\n).*?(<!-- end of rules -->)", re.DOTALL)
BLOCK = re.compile(r"(<!-- table (\S+?) *((?:\|[^\n]*?)?) *-->\n).*?(<!-- end -->)", re.DOTALL)


@dataclass(frozen=True)
class Query:
    """What a page asks of a data file.

    Attributes:
        rows: Conditions that label a row.
        columns: The condition that labels a column, or `what`.
        where: Allowed values by condition; empty where all are.
        cell: One of `each`, `max`, `range`, `sum`, `share`.
    """

    rows: tuple[str, ...]
    columns: str
    where: Mapping[str, tuple[str, ...]]
    cell: str

    @staticmethod
    def of(text: str) -> Query:
        """Reads `| rows: a, b | columns: c | where: d = e / f | cell: max`."""
        parts = dict(re.split(r": *", part.strip(), maxsplit=1) for part in text.split("|") if part.strip())
        unknown = parts.keys() - {"rows", "columns", "where", "cell"}
        if unknown:
            raise ValueError(f"a table is asked for by rows, columns, where and cell, got {sorted(unknown)}")
        pairs = [part.split("=", 1) for part in parts.get("where", "").split(";") if part.strip()]
        where = {name.strip(): tuple(value.strip() for value in values.split(" / ")) for name, values in pairs}
        rows = tuple(name.strip() for name in parts["rows"].split(","))
        return Query(rows, parts.get("columns", "what"), where, parts.get("cell", "each"))

    def allows(self, conditions: Mapping[str, str]) -> bool:
        """Whether a measurement is asked for."""
        return all(conditions.get(name) in values for name, values in self.where.items())


def table(rows: Sequence[Row], query: Query) -> str:
    """A Markdown table of the measurements asked for."""
    found = [(row.settings() | {"what": row.what}, row) for row in rows]
    kept = [(conditions, row) for conditions, row in found if query.allows(conditions)]
    for name, values in query.where.items():
        there = {conditions.get(name) for conditions, _ in found}
        if not there.issuperset(values):
            raise ValueError(f"no measurement has {name} = {sorted(set(values) - there)}")
    if not kept:
        raise ValueError(f"no measurement is asked for by {query}")
    unknown = {*query.rows, query.columns} - {name for conditions, _ in kept for name in conditions}
    if unknown:
        raise ValueError(f"no measurement has the conditions {sorted(unknown)}")
    cells: dict[tuple[str, ...], dict[str, list[Row]]] = {}
    for conditions, row in kept:
        labels = tuple(conditions.get(name, "") for name in query.rows)
        cells.setdefault(labels, {}).setdefault(conditions.get(query.columns, ""), []).append(row)
    columns = _ordered([column for found in cells.values() for column in found], query.where.get(query.columns, ()))
    lines = [[*query.rows, *columns], ["-"] * (len(query.rows) + len(columns))]
    lines += [
        [*labels, *(_cell(cells[labels].get(column, []), query.cell) for column in columns)]
        for labels in _sorted(list(cells), query)
    ]
    return "\n".join(f"|{'|'.join(line)}|" for line in lines)


def _ordered(names: Sequence[str], order: Sequence[str]) -> list[str]:
    return list(dict.fromkeys([name for name in order if name in names] + list(names)))


def _sorted(rows: list[tuple[str, ...]], query: Query) -> list[tuple[str, ...]]:
    """Rows in the order of the file, or by the query's values from the left where it states some."""
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
    raise ValueError(f"cell must be each, max, range, sum or share, got {how}")


def _number(text: str) -> float:
    found = re.match(r"[-+]?[\d,]*\.?\d+(?:e-?\d+)?", text.strip())
    if found is None:
        raise ValueError(f"not a number: {text!r}")
    return float(found[0].replace(",", ""))


def origin_line(origin: Origin, page: Path, *, commands: bool = True) -> str:
    """Where the numbers of a table come from, below it: each command as it can be pasted."""
    path = os.path.relpath(DATA / origin.file, page.parent).replace(os.sep, "/")
    programs = [f"`{program}`" for program in COMMAND.split(origin.program)] if commands else []
    facts = (*programs, origin.made, said_of_code(origin))
    return f"[{origin.file}]({path}): " + ", ".join(fact for fact in facts if fact)


def linked(file: str, page: Path, known: Mapping[str, Origin]) -> str:
    """A data file named in a cell: where it is, when it was made, what to know of its code. Other files as named."""
    if file not in known:
        return file
    path = os.path.relpath(DATA / file, page.parent).replace(os.sep, "/")
    facts = (known[file].made, said_of_code(known[file]))
    return f"[{file.removesuffix('.csv')}]({path}), " + ", ".join(fact for fact in facts if fact)


def said_of_code(origin: Origin) -> str:
    """What a reader must know of the code behind a data file; "" where it is that of now, or no program of ours."""
    now = version_of(origin.program)
    if not now or origin.code == now:
        return ""
    return "its code has changed since" if origin.code else "its code was not recorded"


def written(text: str, page: Path, known: Mapping[str, Origin]) -> str:
    """The text of a page with its tables made anew."""
    seen: set[str] = set()

    def block(found: re.Match[str]) -> str:
        head, file, query, end = found.groups()
        origin = origin_line(known[file], page, commands=file not in seen)
        seen.add(file)
        if not query:
            return f"{head}{origin}\n{end}"
        cells = NAMED.sub(lambda named: linked(named[0], page, known), table(read(DATA / file), Query.of(query)))
        return f"{head}\n{cells}\n\n{origin}\n\n{end}"

    return RULES_BLOCK.sub(lambda found: f"{found[1]}{rules_table()}\n{found[2]}", BLOCK.sub(block, text))


def rules_table() -> str:
    """Return the rules of the verdict as a Markdown table, in their order."""
    from dpaudit.engine.reading.verdict import RULES

    rows = [f"| {place} | {rule.when} | {rule.verdict} |" for place, rule in enumerate(RULES, 1)]
    return "\n".join(["| rule | applies if | verdict |", "| --- | --- | --- |", *rows])


def main() -> None:
    """Writes every page that asks for a table."""
    known = origins()
    for page in sorted(DOCS.rglob("*.md")):
        before = page.read_text(encoding="utf-8")
        after = written(before, page, known)
        if after != before:
            page.write_text(after, encoding="utf-8")
            print(page.relative_to(DOCS.parent))


if __name__ == "__main__":
    main()
