"""Foreign words as text of a Markdown file: names, error messages and findings that must not become markup."""

from __future__ import annotations

import re

from dpaudit.errors import printable

_APART = "&#8203;"  # a space of no width: renderers look for mentions and bare addresses in the text after unescaping
# An entity for the backslash: behind two of them, not every reader of tables takes the end of a cell for its end.
_AS_TEXT = str.maketrans({sign: f"\\{sign}" for sign in "`*_[]{}|~!$>#@^"} | {"&": "&amp;", "<": "&lt;", "\\": "&#92;"})
_OPENS_A_BLOCK = re.compile(r"([-+=]|\d+[.)])")  # as the first word of a line


def markdown_text(text: str) -> str:
    """Return `text` as one line of Markdown, to stand behind a heading's sign, in a table's cell or in a list.

    Links, images, bare addresses, e-mail addresses, mentions and references (`@name`, `#12`), HTML, table pipes, code,
    emphasis, formulas, and lists or headings at the beginning of the line are shown as the characters that they are.
    """
    line = " ".join(printable(text).split()).translate(_AS_TEXT)
    if opening := _OPENS_A_BLOCK.match(line):
        sign = opening.group()
        line = f"{sign[:-1]}\\{sign[-1]}{line[len(sign) :]}"
    line = re.sub(r"\\([@#!])(?=\w)", rf"\\\1{_APART}", line)
    line = re.sub(r"(?i)(www)\.", rf"\1{_APART}.", line)
    return line.replace("://", f":{_APART}//")
