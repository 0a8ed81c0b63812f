"""Names in an object store must be safe paths below a folder."""

from __future__ import annotations

import pytest

from dpaudit.actors.storage.mirror import _require_safe_names
from dpaudit.errors import RunError
from tests.loops import Cases

GOOD = ["plan.parquet", "units/a.parquet", "scores/one/00000.parquet", ".mirror.json", "a..b", "dot./x", "Ünits/ß"]


def test_names_of_a_run_are_accepted() -> None:
    _require_safe_names(GOOD, "s3://bucket/run")


def test_unsafe_and_clashing_names_are_refused() -> None:
    with Cases() as cases:
        for name in [
            "../evil",
            "units/../../evil",
            "..",
            ".",
            "units/./x",
            "/etc/passwd",
            "units//x",
            "units/",
            "a\\..\\b",
            "C:x",
            "file:stream",
            "nul\0x",
            "line\nbreak",
            "\x1b[2Jx",
            "right\u202eleft",
            "x" * 256,
            "",
            "Units/a.parquet",
            "PLAN.parquet",
            "plan.parquet/x",
            "u\u0308nits/ß",
            "Ünits/SS",
        ]:
            with cases.case(name):
                refused = r"must hold only files that .* below a folder.*nothing was copied"
                with pytest.raises(RunError, match=refused) as raised:
                    _require_safe_names([*GOOD, name], "s3://bucket/run")
                assert str(raised.value).isprintable()
