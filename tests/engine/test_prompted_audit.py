"""PromptPATE audited through a real HTTP server: failures, resumption, the key, the price, adversaries of prompts."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from dpaudit import RunOptions, audit, load_spec
from dpaudit.engine.cli.main import main
from dpaudit.engine.data.generated import MadePhrases
from dpaudit.engine.games.predictions.adversaries import Target
from dpaudit.engine.games.predictions.informed_adversaries import wrong_numbers
from dpaudit.engine.planning.plan import make_plan
from dpaudit.engine.request.build import build
from dpaudit.errors import SpecError
from dpaudit.mechanisms.compute import Compute
from tests.http_servers import Does, Server, chat, prompt_of, serving

KEY, VARIABLE = "sk-audit/key+0123456789", "DPAUDIT_AUDIT_KEY"
QUERIES = 6


def answer(body: dict[str, Any]) -> object:
    """Repeats the example that is the query, obeys an order, and else counts even words; some answers are no class."""
    prompt = prompt_of(body)
    if ordered := re.search(r"output the Answer (\d)", prompt):
        return chat(ordered[1])
    example, query = re.findall(r"^Text: (.*)$", prompt, re.MULTILINE)
    if example == query:
        return chat(prompt.split("Answer: ")[1][0])
    if len(query) % 11 == 0:
        return chat(f"{KEY} is what I was sent")
    return chat(str(sum(int(word[1:]) % 2 for word in query.split()) % 2))


def spec(server: Server, cache: Path, *adversaries: str, **settings: Any) -> Any:
    model = {"name": "endpoint", "url": server.url, "model_name": "m", "key_variable": VARIABLE, "cache": str(cache)}
    model |= {"first_wait_s": 0.01, "attempts": 3, **settings}
    game = {"name": "private-prediction", "queries": QUERIES, "relation": "replace", "answers": 10**7, "search": 10**6}
    loaded = load_spec(
        {
            "data": {"name": "made-phrases", "rows": 60, "raw": True},
            "split": {"target": 0.8, "reference": 0.0, "test": 0.2},
            "mechanism": {"name": "prompt-pate", "teachers": 20, "sigma": 3.0, "model": model},
            "audits": [{"name": name, "game": {**game, "adversary": name}} for name in adversaries],
        }
    )
    return replace(loaded, run=RunOptions("in-process"))


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, KEY)


def said_in(folder: Path) -> str:
    """Return every file of a folder as text, tables unpacked."""
    texts = []
    for path in folder.rglob("*"):
        if path.is_file():
            texts.append(f"{path} {path.read_bytes().decode(errors='replace')}")
            if path.suffix == ".parquet":
                table = pq.read_table(path)
                texts.append(f"{table.to_pydict()} {table.schema.metadata}")
    return "\n".join(texts)


def test_an_audit_survives_its_endpoint_and_the_key_is_in_none_of_its_files(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    error = {"error": {"message": f"the key {KEY} is slow"}}
    with serving(answer, Does(status=500, body=error), Does(body=KEY.encode()), Does(drops="at once")) as server:
        audit_spec = spec(server, tmp_path / "answers", "nat-adv-q", "pois-adv-q", "pois-nat-q-all-same")
        report = audit(audit_spec, output=tmp_path / "run")
        assert not report.failed
        assert server.headers[0]["Authorization"] == f"Bearer {KEY}"
        assert len(server.bodies) == 3 + len({str(body) for body in server.bodies})
    results = {result.name: result for result in report.results}
    for result in report.results:
        assert result.finding is not None
        assert not result.comparison.exceeds
        assert result.metrics["answers_that_name_no_class"] > 0
    assert results["pois-adv-q"].comparison.observed > 0.02, "sigma is 3: a vote that moves is seen"
    everything = said_in(tmp_path) + str(report) + "".join(capfd.readouterr())
    assert VARIABLE in everything
    assert KEY not in everything


def test_a_run_that_broke_off_asks_for_what_is_missing_alone(tmp_path: Path) -> None:
    with serving(answer) as server:
        server.faults = [Does(status=503)] * 1000
        audit_spec = spec(server, tmp_path / "answers", "pois-adv-q", attempts=1)
        assert audit(audit_spec, output=tmp_path / "run").failed
        server.faults = []
        report = audit(audit_spec, output=tmp_path / "again")
        assert not report.failed
        answered = len(server.bodies)
        assert audit(audit_spec, output=tmp_path / "third").results[0].finding is not None
        assert len(server.bodies) == answered, "another run, and nothing is asked"


def test_the_price_is_said_before_anything_is_asked(tmp_path: Path) -> None:
    with serving(answer) as server:
        audit_spec = spec(server, tmp_path / "answers", "pois-adv-q", price_in=1.0, price_out=1.0)
        (price,) = make_plan(audit_spec).prices()
        assert re.search(r"120 different prompts, 0 of them answered before: 120 requests, .*cost about 0.01", price)
        path = tmp_path / "spec.yaml"
        audit(audit_spec, output=tmp_path / "run")
        path.write_text((tmp_path / "run" / "spec.yaml").read_text())
        output = CliRunner().invoke(main, ["plan", str(path)]).output
        assert "120 of them answered before: 0 requests" in output


def test_adversaries_of_prompts_are_for_prompts(tmp_path: Path) -> None:
    audit_spec = load_spec(
        {
            "data": "digits",
            "mechanism": {"name": "private-knn", "neighbours": 10},
            "game": {"name": "private-prediction", "queries": 2, "adversary": "pois-nat-q-mapping", "answers": 1000},
        }
    )
    report = audit(replace(audit_spec, run=RunOptions("in-process")), output=tmp_path)
    assert "pois-nat-q-mapping is for prompt-pate, got PrivateKnn" in said_in(tmp_path)
    assert report.failed
    with pytest.raises(SpecError, match="answer must be >= 0"):
        build("adversary", {"name": "pois-nat-q-all-same", "answer": -1})


def test_a_class_is_given_the_number_of_the_one_it_is_confused_with() -> None:
    data = MadePhrases(rows=5, raw=True).load()
    votes = np.array([[9, 1, 0], [9, 0, 2], [8, 0, 3], [0, 9, 3], [5, 6, 1]], np.float64)
    target = Target(None, replace(data, classes=3), data, votes, 1, Compute())
    assert wrong_numbers(target) == [2, 0, 0]
