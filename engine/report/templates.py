"""The templates of pages that stand alone: everything put into them is escaped, figures alone are taken as they are."""

from __future__ import annotations

import math
from functools import cache

from jinja2 import Environment, PackageLoader, Template
from markupsafe import Markup

from dpaudit.engine.spec.audit_spec import slug
from dpaudit.errors import printable_lines
from dpaudit.estimators.bound import format_lower, format_upper


def escaping(package: str) -> Environment:
    """Templates of a package in which every value may be a stranger's: no markup, and no sign that turns text round."""
    # By name alone Jinja escapes files that end in .html, and ours end in .html.j2: it must be told.
    return Environment(loader=PackageLoader(package, "."), autoescape=True, finalize=_as_it_is)


def _as_it_is(value: object) -> str:
    return value if isinstance(value, Markup) else printable_lines(str(value))


@cache
def template(name: str, package: str = "dpaudit.engine.report") -> Template:
    """One of the templates of a package."""
    environment = escaping(package)
    environment.globals.update(format_lower=format_lower, format_upper=format_upper, isfinite=math.isfinite, slug=slug)
    return environment.get_template(name)


def figure_markup(svg: str) -> Markup:
    """A figure we drew ourselves, the only thing a page takes unescaped; Matplotlib escapes the words in it."""
    return Markup(svg)
