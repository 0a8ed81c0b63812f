"""Audits as jobs of a running cluster, through Ray's own job server: submitted, watched, stopped."""

from __future__ import annotations

import hashlib
import logging
import os
import shlex
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from dpaudit.cluster.session import REACHED_S
from dpaudit.errors import RunError, SpecError, shortened

PREFIX = "dpaudit-"  # of the names of our jobs
ALIVE, SUCCEEDED = ("PENDING", "RUNNING"), "SUCCEEDED"
ALWAYS_LEFT_OUT = (".git", ".venv*", "__pycache__")
PAUSE_S = 0.5
PATIENCE_S = 60.0  # for how long a job that is stopped is waited for
MAX_TRIES = 1_000
T = TypeVar("T")


@dataclass(frozen=True)
class Job:
    """What runs on a cluster."""

    arguments: tuple[str, ...]  # of `python -m dpaudit`
    working_dir: Path  # folder that travels with it: the spec, and code of one's own
    # a requirements.txt that the cluster installs for it; None where its image has everything
    requirements: Path | None = None
    packages: tuple[Path, ...] = ()  # folders of Python packages that travel with it
    metadata: Mapping[str, str] = field(default_factory=dict)  # shown by the cluster's dashboard; nothing secret

    @property
    def entrypoint(self) -> str:
        return shlex.join(["python", "-m", "dpaudit", *self.arguments])

    def key(self) -> str:
        """The name of the job: the same for the same command, files and requirements, another one for others."""
        hasher = hashlib.sha256(self.entrypoint.encode())
        for folder in (self.working_dir, *self.packages):
            hasher.update(_content(folder, self.left_out()).encode())
        if self.requirements is not None:
            hasher.update(self.requirements.read_bytes())
        return PREFIX + hasher.hexdigest()[:20]

    def left_out(self) -> list[str]:
        """What does not travel: version control, environments, and run folders, which change with every run."""
        runs = (plan.parent for pattern in ("*", "*/*") for plan in self.working_dir.glob(f"{pattern}/plan.parquet"))
        return [*ALWAYS_LEFT_OUT, *sorted(f"/{run.relative_to(self.working_dir).as_posix()}" for run in runs)]

    def runtime_env(self) -> dict[str, Any]:
        """What travels, as Ray takes it; no environment variables: secrets are the cluster's own."""
        return {
            "working_dir": str(self.working_dir),
            "excludes": self.left_out(),
            **({"pip": str(self.requirements)} if self.requirements is not None else {}),
            **({"py_modules": [str(folder) for folder in self.packages]} if self.packages else {}),
        }


@dataclass(frozen=True)
class Submitted:
    """What became of a submission."""

    name: str  # of the job
    new: bool  # whether it was begun now; otherwise one of the same work was there already
    state: str  # PENDING, RUNNING, STOPPED, SUCCEEDED or FAILED


class Jobs:
    """The job server of a cluster, at the address of its dashboard: "http://head:8265"; RunError where it refuses."""

    def __init__(self, address: str | None = None) -> None:
        self.address = address or os.environ.get("RAY_API_SERVER_ADDRESS") or ""
        parts = urlsplit(self.address)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise SpecError(
                "the address must be that of the cluster's dashboard, http://HOST:8265, got "
                f"{shortened(self.address or None)}; give --address, or set RAY_API_SERVER_ADDRESS"
            )
        port = parts.port or (443 if parts.scheme == "https" else 80)
        try:
            socket.create_connection((parts.hostname, port), timeout=REACHED_S).close()
        except OSError as err:
            raise RunError(
                f"no job server answers at {self.address}: {err.strerror or err}; check that the cluster runs with its "
                "dashboard, and that this machine reaches it"
            ) from err
        _leave_proxies_out(parts.hostname)
        self._client = self._asked(self._connect)

    def _connect(self) -> Any:
        try:
            from ray.job_submission import JobSubmissionClient
        except ImportError as err:
            raise RunError('jobs need the packages of `pip install "dpaudit[cluster]"`') from err
        client = JobSubmissionClient(self.address)
        for name in ("ray.dashboard.modules.dashboard_sdk", "ray._private.runtime_env.packaging"):
            logging.getLogger(name).setLevel(logging.WARNING)  # they tell of each package
        return client

    @staticmethod
    def is_name(word: str) -> bool:
        return word.startswith(PREFIX)

    def failure(self, name: str) -> str:
        """How a job ended other than by success, in words; "" where it succeeded."""
        state = self.state(name)
        return "" if state == SUCCEEDED else f"{state}; {self.message(name)}"

    def submit(self, job: Job) -> Submitted:
        """Begins a job, unless one of the same work runs or has succeeded; one that failed is begun again.

        What it finished then is not run again where its run folder lasts. The job server takes a name once: of two
        submissions of the same work at one moment it begins one, and the other is told of that job.
        """
        key = job.key()
        for attempt in range(1, MAX_TRIES):
            name = key if attempt == 1 else f"{key}-{attempt}"
            state = self._state(name)
            if state is None:
                if self._begin(job, name):
                    return Submitted(name, True, "PENDING")
                state = self.state(name)  # somebody submitted the same work in between
            if state in (*ALIVE, SUCCEEDED):
                return Submitted(name, False, state)
        raise RunError(f"{key} failed {MAX_TRIES} times; look into its logs first")

    def _begin(self, job: Job, name: str) -> bool:
        """True if the job was begun under this name; False if the server has a job of that name by now."""
        try:
            more = {"runtime_env": job.runtime_env(), "metadata": dict(job.metadata)}
            self._asked(lambda: self._client.submit_job(entrypoint=job.entrypoint, submission_id=name, **more))
        except RunError as err:
            if "already exists" in str(err.__cause__):
                return False
            raise
        return True

    def state(self, name: str) -> str:
        """PENDING, RUNNING, STOPPED, SUCCEEDED or FAILED."""
        found = self._state(name)
        if found is None:
            known = [job.submission_id or "" for job in self._asked(self._client.list_jobs)]
            ours = filter(self.is_name, known)
            raise RunError(
                f"{self.address} knows no job {shortened(name)}, only {shortened(', '.join(ours) or 'none')}"
            )
        return found

    def _state(self, name: str) -> str | None:
        def ask() -> str | None:
            try:
                return str(self._client.get_job_status(name).value)
            except RuntimeError as err:
                if "does not exist" in str(err):
                    return None
                raise

        return self._asked(ask)

    def message(self, name: str) -> str:
        """What the cluster says of how the job ended, in one line; "" where it says nothing."""
        info = self._asked(lambda: self._client.get_job_info(name))
        return " ".join(str(info.message or "").partition(", last available logs")[0].split())[:500]

    def logs(self, name: str, *, follow: bool = False) -> Iterator[str]:
        """What the job printed; with `follow` until it has ended."""
        shown = 0
        while True:
            ended = self.state(name) not in ALIVE
            text = self._asked(lambda: self._client.get_job_logs(name))
            if len(text) > shown:
                yield text[shown:]
                shown = len(text)
            if ended or not follow:
                return
            time.sleep(PAUSE_S)

    def stop(self, name: str) -> str:
        """Stops a job, which keeps what it finished, and waits until it has stopped; its state then."""
        self.state(name)
        self._asked(lambda: self._client.stop_job(name))
        until = time.monotonic() + PATIENCE_S
        while (state := self.state(name)) in ALIVE and time.monotonic() < until:
            time.sleep(PAUSE_S)
        return state

    def _asked(self, ask: Callable[[], T]) -> T:
        """The answer of the job server, or one sentence."""
        from ray.exceptions import AuthenticationError

        try:
            return ask()
        except AuthenticationError as err:
            raise RunError(
                f"the job server at {self.address} asks for a token, and the one given here is not its own; set "
                "RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN_PATH to the file of the cluster's token"
            ) from err
        except (RuntimeError, OSError, ValueError) as err:
            lines = str(err).strip().splitlines() or [type(err).__name__]
            raise RunError(f"the job server at {self.address} refused: {shortened(lines[-1])}") from err


def _leave_proxies_out(host: str) -> None:
    """Has this process ask a host itself, though the environment names a proxy: the host took a connection just now."""
    listed = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    if host not in listed.split(","):
        os.environ["no_proxy"] = os.environ["NO_PROXY"] = ",".join(filter(None, (listed, host)))


def _content(folder: Path, left_out: list[str]) -> str:
    """Ray's own name for what a folder would ship."""
    from ray._private.runtime_env.packaging import get_uri_for_directory

    return str(get_uri_for_directory(str(folder), include_gitignore=True, excludes=left_out))
