"""The templates of pages that stand alone: everything put into them is escaped, figures alone are taken as they are."""

from __future__ import annotations

import math
from functools import cache

from jinja2 import Environment, PackageLoader, Template
from markupsafe import Markup

from dpaudit.engine.spec.audit_spec import slug
from dpaudit.estimators.bound import format_lower, format_upper


@cache
def template(name: str) -> Template:
    """One of the templates beside this file."""
    # By name alone Jinja escapes files that end in .html, and ours end in .html.j2: it must be told.
    environment = Environment(loader=PackageLoader("dpaudit.engine.report", "."), autoescape=True)
    environment.globals.update(format_lower=format_lower, format_upper=format_upper, isfinite=math.isfinite, slug=slug)
    return environment.get_template(name)


def figure_markup(svg: str) -> Markup:
    """A figure we drew ourselves, the only thing a page takes unescaped; Matplotlib escapes the words in it."""
    return Markup(svg)
