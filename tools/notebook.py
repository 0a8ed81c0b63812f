"""Notebooks of the docs: their cells are run, their outputs stored, and a Markdown page is written next to each.

python -m tools.notebook docs/tutorials/lora.ipynb
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from dpaudit.plain_files import write_user_file

FOOTER = "This page is the notebook [{name}]({name}), run by `python -m tools.notebook docs/tutorials/{name}`."


def load(path: Path) -> dict[str, Any]:
    """Return the content of a notebook."""
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def source(cell: dict[str, Any]) -> str:
    """Return the text of a cell."""
    return "".join(cell["source"])


def printed(cell: dict[str, Any]) -> str:
    """Return the stored output of a cell of code."""
    return "".join("".join(output["text"]) for output in cell["outputs"])


def run(notebook: dict[str, Any], space: dict[str, Any]) -> list[str]:
    """Run the cells of code in one namespace; return what each printed, and the value of its last expression."""
    outputs = []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            tree = ast.parse(source(cell))
            final = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
            last = ast.Expression(final.value) if isinstance(final, ast.Expr) else None
            with contextlib.redirect_stdout(io.StringIO()) as stream:
                exec(compile(tree, "<cell>", "exec"), space)
                value = None if last is None else eval(compile(last, "<cell>", "eval"), space)
                if value is not None:
                    print(value)
            outputs.append(stream.getvalue())
    return outputs


def with_outputs(notebook: dict[str, Any], outputs: list[str]) -> dict[str, Any]:
    """Return the notebook with these outputs of its cells of code."""
    cells, waiting = [], iter(enumerate(outputs, 1))
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            count, text = next(waiting)
            printed_outputs = (
                [{"name": "stdout", "output_type": "stream", "text": text.splitlines(keepends=True)}] if text else []
            )
            cell = {**cell, "execution_count": count, "outputs": printed_outputs}
        cells.append(cell)
    return {**notebook, "cells": cells}


def page(notebook: dict[str, Any], name: str) -> str:
    """Return the notebook as a page: cells of code, each with its output indented below."""
    parts = []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            parts.append(source(cell))
        else:
            parts.append(f"```python\n{source(cell)}\n```")
            if text := printed(cell).strip("\n"):
                parts.append("\n".join(f"    {line}".rstrip() for line in text.split("\n")))
    return "\n\n".join([*parts, FOOTER.format(name=name)]) + "\n"


def main(path: Path) -> None:
    """Run a notebook, store its outputs in it, and write its page."""
    notebook, path = load(path), path.resolve()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        outputs = run(notebook, {"__name__": "__main__"})
    notebook = with_outputs(notebook, outputs)
    write_user_file(path, (json.dumps(notebook, indent=1, ensure_ascii=False) + "\n").encode())
    write_user_file(path.with_suffix(".md"), page(notebook, path.name).encode())


if __name__ == "__main__":
    for name in sys.argv[1:]:
        main(Path(name))
