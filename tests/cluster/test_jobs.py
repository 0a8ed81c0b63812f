"""Jobs on a real cluster of this machine, with a token, and on replaced job servers."""

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
from dpaudit.engine.cli import remote
from dpaudit.engine.cli.main import main
from dpaudit.engine.cli.remote import job_of
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
    """Restore the proxy variables that a command changes."""
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
    """Run a node with one CPU and a job server."""
    with head_node(tmp_path_factory.mktemp("head"), jobs=True, cpus=1) as started:
        yield started


def with_token(token: Path, *command: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command in a new process, because Ray reads its token at import."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    run = [sys.executable, "-m", *command]
    return subprocess.run(run, env=environment, cwd=folder, capture_output=True, text=True, check=False, timeout=500)


@pytest.mark.nightly
@pytest.mark.cluster
def test_a_real_job_starts_once_and_resumes_after_its_driver_died(
    head: Head, working_dir: Path, tmp_path: Path
) -> None:
    checks = with_token(head.token, "tests.cluster.job_checks", head.dashboard, str(tmp_path), str(working_dir))
    assert checks.returncode == 0, checks.stdout + checks.stderr
    (tmp_path / "another").write_text("0" * 64)
    refused = with_token(tmp_path / "another", "dpaudit", "status", "dpaudit-none", "--address", head.dashboard)
    assert refused.returncode == 3
    assert "rejected the token" in refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1


JOIN = """
import json, os, sys
from dpaudit.cluster import session
from dpaudit.errors import RunError

address, token, wrong = sys.argv[1:]
outputs, attempts, init = {}, [], session._init
session._init = lambda **options: (attempts.append(name), init(**options))
for name, mode, path in (("wrong", "token", wrong), ("none", "disabled", ""), ("right", "token", token)):
    os.environ.update(RAY_AUTH_MODE=mode, RAY_AUTH_TOKEN_PATH=path)
    try:
        with session.ray_session(address):
            import ray

            outputs[name] = str(ray.get(ray.remote(num_cpus=1)(lambda: 40 + 2).remote()))
    except RunError as err:
        outputs[name] = str(err)
print(json.dumps({**outputs, "attempts": attempts}))
"""


@pytest.mark.cluster
def test_a_cluster_is_joined_only_with_its_token(head: Head, tmp_path: Path) -> None:
    (tmp_path / "other").write_text(secrets.token_hex(32))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {"HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", JOIN, head.address, str(head.token), str(tmp_path / "other")]
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert process.returncode == 0, process.stderr
    outputs = json.loads(process.stdout.splitlines()[-1])
    assert outputs["right"] == "42"
    assert outputs["attempts"] == ["right"], "with a wrong token, Ray itself retries for 22 s"
    for name in ("wrong", "none"):
        assert outputs[name].startswith(f"cannot join the Ray cluster at {head.address}: it rejected the token")
        assert "\n" not in outputs[name], outputs
    assert "(RAY_AUTH_MODE is disabled)" in outputs["none"]


TWO = """
name: two audits
data: {name: gaussian-mixture, rows: 600}
game: {name: label-canaries, replays: 4, trainings: 2}
audits:
  - {name: on CPUs, mechanism: {name: mine:Placed, epsilon: 1.0}}
  - {name: on shares, mechanism: {name: mine:Placed, epsilon: 2.0}, resources: {custom: {made_up_gpu: 0.5}}}
run: {figures: false, repeats: 0}
"""
PLACED = """

@dataclass(frozen=True)
class Placed:
    epsilon: float

    def claim(self):
        return Claim(self.epsilon)

    def fit(self, train, *, seed, compute, validation=None):
        while os.path.exists({gate!r}):
            time.sleep(0.1)
        with open({places!r}, "a") as places:
            print(self.epsilon, os.environ.get("RAY_TMPDIR", ""), file=places)
        return Constant(train.classes)

@dataclass(frozen=True)
class Constant:
    classes: int

    def probabilities(self, features):
        import numpy as np

        return np.full((len(features), self.classes), 1 / self.classes)
"""


@pytest.mark.cluster
def test_a_job_places_each_audit_as_asked_and_gives_the_scores_of_this_process(
    head: Head, working_dir: Path, tmp_path: Path
) -> None:
    """One audit of a spec trains on CPUs, the other one on shares of a made-up GPU that only the second node has.

    Each node has one CPU. Trainings wait at the gate until a worker has started on both.
    """
    gate, places, events = tmp_path / "gate", tmp_path / "places", tmp_path / "job" / "events.jsonl"
    (working_dir / "spec.yaml").write_text(TWO)
    with (working_dir / "mine.py").open("a") as module:
        module.write(PLACED.format(gate=str(gate), places=str(places)))
    in_process = RunOptions(runner="in-process", figures=False, repeats=0)
    audit(replace(load_spec(working_dir / "spec.yaml"), run=in_process), output=tmp_path / "here", quiet=True)
    assert [line.split() for line in places.read_text().splitlines()] == [["1.0"]] * 3 + [["2.0"]] * 3
    places.unlink()
    gate.touch()
    with another_node(head, made_up_gpu=1) as second:
        submit = ("submit", "spec.yaml", "-o", str(tmp_path / "job"), "--working-dir", ".")
        submitted = with_token(head.token, "dpaudit", *submit, "--address", head.dashboard, folder=working_dir)
        assert submitted.returncode == 0, submitted.stderr
        until(lambda: events.exists() and _most_workers(events) == 2, "a worker has started on each node")
        gate.unlink()
        until((tmp_path / "job" / "report.html").exists, "the job has written its report")
    assert scores(tmp_path / "job") == scores(tmp_path / "here") != {}
    trained = [line.split() for line in places.read_text().splitlines()]
    assert sorted(epsilon for epsilon, _ in trained) == ["1.0"] * 3 + ["2.0"] * 3
    assert {place for epsilon, place in trained if epsilon == "2.0"} == {str(second)}
    assert str(second) not in {place for epsilon, place in trained if epsilon == "1.0"}


def _most_workers(events: Path) -> int:
    return max((event.count for event in read_events(events) if event.kind is EventKind.WORKER_STARTED), default=0)


def scores(folder: Path) -> dict[str, str]:
    files = sorted((folder / "scores").rglob("*.parquet"))
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_the_name_of_a_job_depends_on_its_command_and_files(working_dir: Path, tmp_path: Path) -> None:
    def name(output: Path = tmp_path / "a", seed: int | None = None) -> str:
        return job_of(working_dir / "spec.yaml", output, working_dir=working_dir, seed=seed).key()

    first = name()
    assert name() == first
    assert len({first, name(tmp_path / "b"), name(seed=1)}) == 3
    (working_dir / "runs").mkdir()
    (working_dir / "runs" / "plan.parquet").write_bytes(b"")
    assert name() == first, "run folders are not uploaded"
    (working_dir / "mine.py").write_text("# changed\n" + (working_dir / "mine.py").read_text())
    assert name() != first


def test_a_job_that_cannot_work_on_a_cluster_is_refused(
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


def test_a_sweep_can_be_a_job(working_dir: Path, tmp_path: Path) -> None:
    (working_dir / "sweep.yaml").write_text(SPEC + "grid: {mechanism.epsilon: [1.0, 2.0]}")
    job = job_of(working_dir / "sweep.yaml", tmp_path / "run", working_dir=working_dir, sweep=True)
    assert job.arguments == ("sweep", "sweep.yaml", "--output", str(tmp_path / "run"))


def test_a_job_uploads_no_environment_variables(working_dir: Path) -> None:
    assert "env_vars" not in Job(("run",), working_dir).runtime_env()


class JobServer:
    """A replacement for Ray's client: keeps job states by name, and refuses an existing name with the error of Ray
    2.60.

    With `submitters`, this number of processes ask for a state before one of them submits.
    """

    def __init__(self, *, submitters: int = 1) -> None:
        self.states: dict[str, str] = {}
        self.submissions: list[dict[str, Any]] = []
        self._barrier = threading.Barrier(submitters, timeout=60)
        self._first_requests = submitters
        self._lock = threading.Lock()

    def get_job_status(self, name: str) -> SimpleNamespace:
        with self._lock:
            state, self._first_requests = self.states.get(name), self._first_requests - 1
            waits = self._first_requests >= 0
        if waits:
            self._barrier.wait()
        if state is None:
            raise RuntimeError(f"Request failed with status code 404: Job {name} does not exist.")
        return SimpleNamespace(value=state)

    def submit_job(self, *, submission_id: str, **options: Any) -> None:
        with self._lock:
            if submission_id in self.states:
                raise RuntimeError(
                    f"Request failed with status code 500: ValueError: Job with submission_id {submission_id} already "
                    "exists. Please use a different submission_id."
                )
            self.states[submission_id] = "PENDING"
            self.submissions.append(options)


@pytest.fixture
def dashboard() -> Iterator[str]:
    """Yield an address that accepts connections."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize("has_raylet", [True, False])
def test_a_job_runs_the_python_of_the_heads_ray(has_raylet: bool, working_dir: Path, tmp_path: Path) -> None:
    """A job's shell is a child of a Ray worker, and that of the raylet. Without a raylet, `python` on the path runs."""
    for name in ("python", "heads-python"):
        (tmp_path / name).write_text(f'#!/bin/sh\necho "{name} $@"\n')
        (tmp_path / name).chmod(0o755)
    worker = "import subprocess, sys; print(subprocess.run(sys.argv[1], shell=True, capture_output=True, text=True))"
    raylet = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {worker!r}, sys.argv[1]])"
    command = [sys.executable, "-c", raylet, Job(("run", "my spec.yaml"), working_dir).entrypoint]
    if has_raylet:
        command.append(f"--python_worker_command={tmp_path}/heads-python /ray/setup_worker.py --port=1")
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert f"stdout='{'heads-' if has_raylet else ''}python -m dpaudit run my spec.yaml" in printed


def test_a_job_that_installs_packages_runs_their_python(working_dir: Path, tmp_path: Path) -> None:
    assert Job(("run",), working_dir, requirements=tmp_path / "requirements.txt").entrypoint == "python -m dpaudit run"


def test_a_job_starts_once_and_again_after_it_failed(
    working_dir: Path, dashboard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, job = JobServer(), Job(("run", "spec.yaml"), working_dir)
    monkeypatch.setattr("ray.job_submission.JobSubmissionClient", lambda address: server)
    jobs, key = Jobs(dashboard), job.key()
    first = jobs.submit(job)
    assert (first.name, first.new) == (key, True)
    assert server.submissions == [{"entrypoint": job.entrypoint, "runtime_env": job.runtime_env(), "metadata": {}}]
    for name, state, expected in [
        (key, "PENDING", (key, False)),
        (key, "RUNNING", (key, False)),
        (key, "SUCCEEDED", (key, False)),
        (key, "FAILED", (f"{key}-2", True)),
        (f"{key}-2", "PENDING", (f"{key}-2", False)),
        (f"{key}-2", "STOPPED", (f"{key}-3", True)),
    ]:
        server.states[name] = state
        submitted = jobs.submit(job)
        assert (submitted.name, submitted.new) == expected, state


def test_two_simultaneous_submissions_start_one_job(
    working_dir: Path, tmp_path: Path, dashboard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = JobServer(submitters=2)
    monkeypatch.setattr("ray.job_submission.JobSubmissionClient", lambda address: server)
    job = job_of(working_dir / "spec.yaml", tmp_path / "run", working_dir=working_dir)
    with ThreadPoolExecutor(2) as submitters:
        submissions = list(submitters.map(lambda _: Jobs(dashboard).submit(job), range(2)))
    assert server.states == {job.key(): "PENDING"}
    assert sorted((submitted.name, submitted.new) for submitted in submissions) == [
        (job.key(), False),
        (job.key(), True),
    ]


@pytest.mark.parametrize(
    ("address", "message"),
    [("127.0.0.1:1", "must be that of the cluster's dashboard"), ("http://127.0.0.1:1", "no job server answers")],
)
def test_a_wrong_address_is_refused_in_one_line(address: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "ray.job_submission.JobSubmissionClient", lambda address: pytest.fail("Ray's client retries for a long time")
    )
    with pytest.raises((RunError, SpecError), match=message) as refused:
        Jobs(address)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ("PENDING", " (PENDING) and not started yet; `dpaudit logs -f "),
        ("FAILED", ", which ended as FAILED without a plan; see `dpaudit logs "),
    ],
)
def test_status_of_a_submitted_run_prints_the_state_of_its_job(
    working_dir: Path, tmp_path: Path, dashboard: str, monkeypatch: pytest.MonkeyPatch, state: str, message: str
) -> None:
    server, output = JobServer(), tmp_path / "run"
    monkeypatch.setattr("ray.job_submission.JobSubmissionClient", lambda address: server)
    monkeypatch.chdir(working_dir)
    submitted = CliRunner().invoke(main, ["submit", "spec.yaml", "-o", str(output), "--address", dashboard])
    assert submitted.exit_code == 0, submitted.output
    (name,) = server.states
    server.states[name] = state
    status = CliRunner().invoke(main, ["status", str(output)])
    assert status.exit_code == 0
    assert status.output.startswith(f"{output}: submitted as {name}{message}{name} --address {dashboard}`")
    assert len(status.output.splitlines()) == 1


def test_status_names_the_submitted_job_if_its_cluster_does_not_answer(
    working_dir: Path, tmp_path: Path, dashboard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ray.job_submission.JobSubmissionClient", lambda address: JobServer())
    monkeypatch.chdir(working_dir)
    CliRunner().invoke(main, ["submit", "spec.yaml", "-o", str(tmp_path / "run"), "--address", dashboard])
    status = CliRunner().invoke(main, ["status", str(tmp_path / "run"), "--address", "http://127.0.0.1:1"])
    assert status.exit_code == 0
    assert "not started yet. The state of the job is unknown: no job server answers at " in status.output
    other = CliRunner().invoke(main, ["status", str(tmp_path / "other")])
    assert other.exit_code == 2, "no job was submitted for this folder"


class EmptyJobServer(BaseHTTPRequestHandler):
    """A job server without jobs."""

    def do_GET(self) -> None:
        version = {"version": "4", "ray_version": ray.__version__, "ray_commit": "", "session_name": "mine"}
        asks_version = self.path.startswith("/api/version")
        body = json.dumps(version).encode() if asks_version else b"Job x does not exist."
        self.send_response(200 if asks_version else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


def test_a_reachable_job_server_is_excluded_from_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "example.org")
    monkeypatch.setenv("NO_PROXY", "example.org")
    with ThreadingHTTPServer(("127.0.0.1", 0), EmptyJobServer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        jobs = Jobs(f"http://127.0.0.1:{server.server_port}")
        assert jobs._state("x") is None
        server.shutdown()
    assert os.environ["no_proxy"] == "example.org,127.0.0.1"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "exit code 1, last available logs: /usr/bin/python: No module named dpaudit",
            "has no dpaudit. Submit with --ship",
        ),
        ("exit code 127, last available logs: /bin/sh: 1: python: not found", "has no dpaudit. Submit with --ship"),
        ("exit code 3, last available logs: x", "exit code 3"),
    ],
)
def test_a_head_without_dpaudit_is_named(text: str, message: str) -> None:
    jobs = object.__new__(Jobs)
    jobs._client = SimpleNamespace(get_job_info=lambda name: SimpleNamespace(message=text))
    assert message in jobs.message("dpaudit-1")


def test_further_commands_state_the_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("RAY_API_SERVER_ADDRESS", raising=False)
    (tmp_path / "spec.yaml").write_text("{}")
    submitted = SimpleNamespace(name="dpaudit-1", new=True, state="PENDING")
    jobs = SimpleNamespace(address="http://head:8265", submit=lambda job: submitted, state=lambda name: "PENDING")
    monkeypatch.setattr("dpaudit.cluster.jobs.Jobs", lambda address: jobs)
    monkeypatch.setattr(remote, "job_of", lambda *_, **__: None)
    words = ["submit", str(tmp_path / "spec.yaml"), "-o", str(tmp_path / "run"), "--working-dir", str(tmp_path)]
    for options, where in (["--address", "http://head:8265"], " --address http://head:8265"), ([], ""):
        output = CliRunner().invoke(main, [*words, *options]).output
        assert f"`dpaudit logs -f dpaudit-1{where}`, `dpaudit status {tmp_path / 'run'}{where}`" in output
