"""Fixtures of the tests of audits."""

from tests.engine.conftest import _forked_children, few_releases, own_python  # noqa: F401
