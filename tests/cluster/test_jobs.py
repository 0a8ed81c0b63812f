"""A real cluster on this machine, which asks for a token: joined, and given jobs that are watched, crash and go on."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from click.testing import CliRunner

from dpaudit import RunOptions, audit, load_spec
from dpaudit.actors.events import EventKind, read_events
from dpaudit.cluster.jobs import Job, Jobs
from dpaudit.engine.cli.main import main
from dpaudit.engine.cli.remote import job_of
from dpaudit.engine.run.run_status import fetch
from dpaudit.errors import RunError, SpecError
from tests.cluster.head import Head, another_node, head_node
from tests.waiting import until

SPEC = """
name: job
data: {name: gaussian-mixture, rows: 600}
game: {name: label-canaries, replays: 4}
mechanism: {name: mine:Slow, epsilon: 1.0}
run: {figures: false, workers: 1, repeats: 0}
"""
MINE = """
import os, time
from dataclasses import dataclass
from dpaudit import Claim

@dataclass(frozen=True)
class Slow:
    epsilon: float

    def claim(self):
        return Claim(self.epsilon)

    def release(self, labels, *, classes, rng):
        while os.path.exists({gate!r}):
            time.sleep(0.1)
        return rng.integers(0, classes, size=labels.shape)
"""


@pytest.fixture(autouse=True)
def proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a command notes of them is put back."""
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, os.environ.get(name, ""))


@pytest.fixture
def working_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "work"
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    folder.mkdir()
    (folder / "spec.yaml").write_text(SPEC)
    (folder / "mine.py").write_text(MINE.format(gate=str(tmp_path / "gate")))
    return folder


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Head]:
    """A node of one CPU, with a job server; two of its size make a cluster of two CPUs."""
    with head_node(tmp_path_factory.mktemp("head"), jobs=True, cpus=1) as started:
        yield started


def with_token(token: Path, *command: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own, since Ray reads which token is meant when it is imported."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    run = [sys.executable, "-m", *command]
    return subprocess.run(run, env=environment, cwd=folder, capture_output=True, text=True, check=False, timeout=500)


@pytest.mark.nightly
@pytest.mark.cluster
def test_a_job_is_begun_once_watched_and_gone_on_with_after_its_driver_died(
    head: Head, working_dir: Path, tmp_path: Path
) -> None:
    done = with_token(head.token, "tests.cluster.job_checks", head.dashboard, str(tmp_path), str(working_dir))
    assert done.returncode == 0, done.stdout + done.stderr
    (tmp_path / "another").write_text("0" * 64)
    refused = with_token(tmp_path / "another", "dpaudit", "status", "dpaudit-none", "--address", head.dashboard)
    assert refused.returncode == 3
    assert "asks for a token, and the one given here is not its own" in refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1


JOIN = """
import json, os, sys
from dpaudit.cluster import session
from dpaudit.errors import RunError

address, token, wrong = sys.argv[1:]
said, begun, init = {}, [], session._init
session._init = lambda **options: (begun.append(name), init(**options))
for name, mode, path in (("wrong", "token", wrong), ("none", "disabled", ""), ("right", "token", token)):
    os.environ.update(RAY_AUTH_MODE=mode, RAY_AUTH_TOKEN_PATH=path)
    try:
        with session.ray_session(address):
            import ray

            said[name] = str(ray.get(ray.remote(num_cpus=1)(lambda: 40 + 2).remote()))
    except RunError as err:
        said[name] = str(err)
print(json.dumps({**said, "begun": begun}))
"""


@pytest.mark.cluster
def test_a_cluster_with_a_token_is_joined_with_it_and_with_no_other(head: Head, tmp_path: Path) -> None:
    (tmp_path / "other").write_text(secrets.token_hex(32))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {"HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", JOIN, head.address, str(head.token), str(tmp_path / "other")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["right"] == "42"
    assert said["begun"] == ["right"], "Ray alone tries for 22 s with a token that is not the cluster's, and says less"
    for name in ("wrong", "none"):
        assert said[name].startswith(f"the Ray cluster at {head.address} cannot be joined: it asks for a token"), said
        assert "\n" not in said[name], said
    assert "(RAY_AUTH_MODE is disabled)" in said["none"]


@pytest.mark.cluster
def test_a_submitted_job_runs_on_two_nodes_and_leaves_the_tables_of_this_process(
    head: Head, working_dir: Path, tmp_path: Path
) -> None:
    """Each node has one CPU, so the job's second worker is on the second node.

    No unit ends before both workers are up: they wait at the gate.
    """
    (working_dir / "spec.yaml").write_text(SPEC.replace("workers: 1", "workers: 2"))
    here = RunOptions(runner="in-process", figures=False, repeats=0)
    audit(replace(load_spec(working_dir / "spec.yaml"), run=here), output=tmp_path / "here", quiet=True)
    gate, events = tmp_path / "gate", tmp_path / "job" / "events.jsonl"
    gate.touch()
    with another_node(head):
        submit = ("submit", "spec.yaml", "-o", str(tmp_path / "job"), "--working-dir", ".")
        done = with_token(head.token, "dpaudit", *submit, "--address", head.dashboard, folder=working_dir)
        assert done.returncode == 0, done.stderr
        until(lambda: events.exists() and _most_workers(events) == 2, "a worker has started on each node")
        gate.unlink()
        until((tmp_path / "job" / "report.html").exists, "the job has written its report")
    assert scores(tmp_path / "job") == scores(tmp_path / "here") != {}


def _most_workers(events: Path) -> int:
    return max((event.count for event in read_events(events) if event.kind is EventKind.WORKER_STARTED), default=0)


FOUR = """
name: four ways
seed: 5
data: {name: gaussian-mixture, rows: 600}
game: {name: label-inference, replays: 6, trainings: 2}
mechanism: {name: lp-1st, epsilon: 1.0, model: recall}
run: {figures: false, repeats: 0}
"""


@pytest.mark.nightly
@pytest.mark.cluster
def test_score_tables_are_the_same_four_ways(head: Head, bucket: str, tmp_path: Path) -> None:
    """In this process, on a cluster of two nodes, as a job of one, and with the run folder on an S3 server."""
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "spec.yaml").write_text(FOUR)
    laptop, place = RunOptions(runner="in-process", figures=False, repeats=0), bucket.format("runs/four")
    spec = replace(load_spec(tmp_path / "work" / "spec.yaml"), run=laptop)
    audit(spec, output=tmp_path / "laptop", quiet=True)
    audit(spec, output=place, quiet=True)
    fetch(place, tmp_path / "store")
    submit = ("submit", "spec.yaml", "-o", str(tmp_path / "job"), "--working-dir", ".", "--address", head.dashboard)
    submitted = with_token(head.token, "dpaudit", *submit, folder=tmp_path / "work")
    assert submitted.returncode == 0, submitted.stderr
    with another_node(head):
        (tmp_path / "joined.yaml").write_text(FOUR.replace("{figures", f"{{address: '{head.address}', figures"))
        run = ("run", "joined.yaml", "-o", str(tmp_path / "cluster"), "--quiet")
        done = with_token(head.token, "dpaudit", *run, folder=tmp_path)
        assert done.returncode == 0, done.stderr
    until((tmp_path / "job" / "report.html").exists, "the job has written its report")
    tables = [scores(tmp_path / way) for way in ("laptop", "store", "cluster", "job")]
    assert len(tables[0]) == 4
    assert all(table == tables[0] for table in tables), tables


def scores(folder: Path) -> dict[str, str]:
    files = sorted((folder / "scores").rglob("*.parquet"))
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_the_same_work_has_one_name_and_other_work_another(working_dir: Path, tmp_path: Path) -> None:
    def name(output: Path = tmp_path / "a", seed: int | None = None) -> str:
        return job_of(working_dir / "spec.yaml", output, working_dir=working_dir, seed=seed).key()

    first = name()
    assert name() == first
    assert len({first, name(tmp_path / "b"), name(seed=1)}) == 3
    (working_dir / "runs").mkdir()
    (working_dir / "runs" / "plan.parquet").write_bytes(b"")
    assert name() == first, "a run folder does not travel"
    (working_dir / "mine.py").write_text("# changed\n" + (working_dir / "mine.py").read_text())
    assert name() != first


class Server:
    """In place of Ray's client: the states of jobs by name. `race` has the next job begun by somebody else."""

    def __init__(self) -> None:
        self.states: dict[str, str] = {}
        self.given: list[dict[str, Any]] = []
        self.race = False

    def get_job_status(self, name: str) -> SimpleNamespace:
        if name not in self.states:
            raise RuntimeError(f"Job {name} does not exist")
        return SimpleNamespace(value=self.states[name])

    def submit_job(self, *, submission_id: str, **given: Any) -> None:
        if self.race:
            self.race, self.states[submission_id] = False, "RUNNING"
            raise RuntimeError(f"Job with submission_id {submission_id} already exists")
        self.states[submission_id] = "RUNNING"
        self.given.append(given)


def test_the_same_work_is_begun_once_and_again_after_it_failed(
    working_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a cluster; by night a real one is asked."""
    server, job = Server(), Job(("run", "spec.yaml"), working_dir)
    monkeypatch.setattr(Jobs, "_connect", lambda jobs: server)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(1)
        jobs = Jobs(f"http://127.0.0.1:{listening.getsockname()[1]}")
    first = jobs.submit(job)
    assert (first.name, first.new) == (job.key(), True)
    assert server.given == [
        {"entrypoint": "python -m dpaudit run spec.yaml", "runtime_env": job.runtime_env(), "metadata": {}}
    ]
    for state, name, new in [
        ("PENDING", job.key(), False),
        ("RUNNING", job.key(), False),
        ("SUCCEEDED", job.key(), False),
        ("FAILED", f"{job.key()}-2", True),
    ]:
        server.states[job.key()] = state
        submitted = jobs.submit(job)
        assert (submitted.name, submitted.new) == (name, new), state
    server.states[f"{job.key()}-2"], server.race = "STOPPED", True
    jobs.submit(job)
    assert server.states[f"{job.key()}-3"] == "RUNNING", "somebody else was faster, which is no error"


def test_a_job_whose_results_would_not_last_is_refused(
    working_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(working_dir)
    with pytest.raises(SpecError, match="must be a URI, or an absolute path"):
        job_of(Path("spec.yaml"), Path("runs/here"), working_dir=working_dir)
    (tmp_path / "outside.yaml").write_text(SPEC)
    with pytest.raises(SpecError, match="must be in the uploaded folder"):
        job_of(tmp_path / "outside.yaml", tmp_path / "run", working_dir=working_dir)
    with pytest.raises(RunError, match="without credentials"):
        job_of(Path("spec.yaml"), "s3://key:word@bucket/run", working_dir=working_dir)
    (working_dir / "here.yaml").write_text(SPEC.replace("run: {", "run: {runner: in-process, "))
    with pytest.raises(SpecError, match=r"must have `run: {runner: ray}`"):
        job_of(Path("here.yaml"), tmp_path / "run", working_dir=working_dir)


def test_a_sweep_is_a_job_too(working_dir: Path, tmp_path: Path) -> None:
    (working_dir / "sweep.yaml").write_text(SPEC + "grid: {mechanism.epsilon: [1.0, 2.0]}")
    job = job_of(working_dir / "sweep.yaml", tmp_path / "run", working_dir=working_dir, sweep=True)
    assert job.arguments == ("sweep", "sweep.yaml", "--output", str(tmp_path / "run"))


def test_what_travels_holds_no_environment(working_dir: Path) -> None:
    assert "env_vars" not in Job(("run",), working_dir).runtime_env()


class TakesANameOnce:
    """A job server that knows names and states, and refuses a name that it has, in the words of Ray 2.60's."""

    def __init__(self, *, submitters: int = 1) -> None:
        self.states: dict[str, str] = {}
        self._asked_together = threading.Barrier(submitters, timeout=60)
        self._first_questions = submitters
        self._lock = threading.Lock()

    def get_job_status(self, name: str) -> SimpleNamespace:
        with self._lock:
            state, self._first_questions = self.states.get(name), self._first_questions - 1
            waits = self._first_questions >= 0
        if waits:
            self._asked_together.wait()  # all submitters have asked before one of them submits
        if state is None:
            raise RuntimeError(f"Request failed with status code 404: Job {name} does not exist.")
        return SimpleNamespace(value=state)

    def submit_job(self, *, submission_id: str, **_: object) -> None:
        with self._lock:
            if submission_id in self.states:
                raise RuntimeError(
                    f"Request failed with status code 500: ValueError: Job with submission_id {submission_id} already "
                    "exists. Please use a different submission_id."
                )
            self.states[submission_id] = "PENDING"


@pytest.fixture
def dashboard() -> Iterator[str]:
    """An address that takes connections."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def test_of_two_submissions_at_one_moment_one_begins_the_job(
    working_dir: Path, tmp_path: Path, dashboard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = TakesANameOnce(submitters=2)
    monkeypatch.setattr(Jobs, "_connect", lambda jobs: server)
    job = job_of(working_dir / "spec.yaml", tmp_path / "run", working_dir=working_dir)
    with ThreadPoolExecutor(2) as submitters:
        submitted = list(submitters.map(lambda _: Jobs(dashboard).submit(job), range(2)))
    assert server.states == {job.key(): "PENDING"}
    assert sorted((each.name, each.new) for each in submitted) == [(job.key(), False), (job.key(), True)]


def test_work_that_failed_is_begun_again_once(
    working_dir: Path, tmp_path: Path, dashboard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = TakesANameOnce()
    monkeypatch.setattr(Jobs, "_connect", lambda jobs: server)
    job = job_of(working_dir / "spec.yaml", tmp_path / "run", working_dir=working_dir)
    server.states[job.key()] = "FAILED"
    submitted = [Jobs(dashboard).submit(job) for _ in range(2)]
    assert [(each.name, each.new) for each in submitted] == [(f"{job.key()}-2", True), (f"{job.key()}-2", False)]


@pytest.mark.parametrize(
    ("address", "said"),
    [("127.0.0.1:1", "must be that of the cluster's dashboard"), ("http://127.0.0.1:1", "no job server answers")],
)
def test_an_address_where_nothing_answers_is_one_sentence(
    address: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Jobs, "_connect", lambda jobs: pytest.fail("Ray's client tries for a long time"))
    with pytest.raises((RunError, SpecError), match=said) as refused:
        Jobs(address)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("state", "shown"),
    [
        ("PENDING", " (PENDING) and not started yet; `dpaudit logs -f "),
        ("FAILED", ", which ended as FAILED without a plan; see `dpaudit logs "),
    ],
)
def test_status_of_an_output_that_was_submitted_says_how_its_job_stands(
    working_dir: Path, tmp_path: Path, dashboard: str, monkeypatch: pytest.MonkeyPatch, state: str, shown: str
) -> None:
    server, output = TakesANameOnce(), tmp_path / "run"
    monkeypatch.setattr(Jobs, "_connect", lambda jobs: server)
    monkeypatch.chdir(working_dir)
    submitted = CliRunner().invoke(main, ["submit", "spec.yaml", "-o", str(output), "--address", dashboard])
    assert submitted.exit_code == 0, submitted.output
    (name,) = server.states
    server.states[name] = state
    status = CliRunner().invoke(main, ["status", str(output)])
    assert status.exit_code == 0
    assert status.output.startswith(f"{output}: submitted as {name}{shown}{name}`")
    assert len(status.output.splitlines()) == 1


def test_status_says_that_a_job_was_submitted_though_its_cluster_does_not_answer(
    working_dir: Path, tmp_path: Path, dashboard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Jobs, "_connect", lambda jobs: TakesANameOnce())
    monkeypatch.chdir(working_dir)
    CliRunner().invoke(main, ["submit", "spec.yaml", "-o", str(tmp_path / "run"), "--address", dashboard])
    status = CliRunner().invoke(main, ["status", str(tmp_path / "run"), "--address", "http://127.0.0.1:1"])
    assert status.exit_code == 0
    assert "not started yet. The state of the job is unknown: no job server answers at " in status.output
    other = CliRunner().invoke(main, ["status", str(tmp_path / "other")])
    assert other.exit_code == 2, "nothing was submitted to write this one"


class Answers(BaseHTTPRequestHandler):
    """A job server that says its version and knows no job."""

    def do_GET(self) -> None:
        version = {"version": "4", "ray_version": ray.__version__, "ray_commit": "", "session_name": "mine"}
        found = version if self.path.startswith("/api/version") else None
        body = json.dumps(found).encode() if found else b"Job x does not exist."
        self.send_response(200 if found else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


def test_a_job_server_of_this_machine_is_asked_past_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "example.org")
    monkeypatch.setenv("NO_PROXY", "example.org")
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        jobs = Jobs(f"http://127.0.0.1:{server.server_port}")
        assert jobs._state("x") is None
        server.shutdown()
    assert os.environ["no_proxy"] == "example.org,127.0.0.1"
