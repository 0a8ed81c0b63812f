"""Escaping of untrusted text for Markdown: names, error messages and findings that must not become markup."""

from __future__ import annotations

import re

from dpaudit.errors import printable

_ZERO_WIDTH_SPACE = "&#8203;"  # because renderers look for mentions and addresses after unescaping
# An entity for the backslash, because some renderers ignore the end of a table cell after two backslashes.
_AS_TEXT = str.maketrans({sign: f"\\{sign}" for sign in "`*_[]{}|~!$>#@^"} | {"&": "&amp;", "<": "&lt;", "\\": "&#92;"})
_OPENS_A_BLOCK = re.compile(r"([-+=]|\d+[.)])")  # at the beginning of a line


def markdown_text(text: str) -> str:
    """Return `text` as one line of Markdown, for a heading, a table cell or a list item.

    Links, images, bare addresses, e-mail addresses, mentions and references (`@name`, `#12`), HTML, table pipes, code,
    emphasis, formulas, and lists or headings at the beginning of the line are shown as plain characters.
    """
    line = " ".join(printable(text).split()).translate(_AS_TEXT)
    if opening := _OPENS_A_BLOCK.match(line):
        sign = opening.group()
        line = f"{sign[:-1]}\\{sign[-1]}{line[len(sign) :]}"
    line = re.sub(r"\\([@#!])(?=\w)", rf"\\\1{_ZERO_WIDTH_SPACE}", line)
    line = re.sub(r"(?i)(www)\.", rf"\1{_ZERO_WIDTH_SPACE}.", line)
    return line.replace("://", f":{_ZERO_WIDTH_SPACE}//")
