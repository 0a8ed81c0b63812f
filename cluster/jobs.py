"""Submit, follow and stop audits as jobs of a running cluster, through Ray's job server."""

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

from dpaudit.cluster.session import CONNECT_S
from dpaudit.errors import RunError, SpecError, shortened

PREFIX = "dpaudit-"  # of job names
UNFINISHED, SUCCEEDED = ("PENDING", "RUNNING"), "SUCCEEDED"
ALWAYS_EXCLUDED = (".git", ".venv*", "__pycache__")
POLL_S = 0.5
STOP_S = 60.0  # longest wait for a job to stop
MAX_TRIES = 1_000
# In a job's shell: the Python of the head's Ray, which `python` on its path may not be. The shell is a child of a Ray
# worker, whose parent, the raylet, has the command of its Python in its arguments.
HEAD_PYTHON = (
    "python=$(tr '\\0' '\\n' < /proc/$(cut -d' ' -f4 /proc/$PPID/stat)/cmdline "
    "| sed -n 's/^--python_worker_command=\\([^ ]*\\).*/\\1/p')"
)
T = TypeVar("T")


@dataclass(frozen=True)
class Job:
    """A dpaudit command for a cluster."""

    arguments: tuple[str, ...]  # of `python -m dpaudit`
    working_dir: Path  # folder to upload: the spec, and the user's code
    requirements: Path | None = None  # requirements.txt that the cluster installs; None if its image has all packages
    packages: tuple[Path, ...] = ()  # folders of Python packages to upload
    metadata: Mapping[str, str] = field(default_factory=dict)  # shown in the cluster's dashboard; must not be secret

    @property
    def entrypoint(self) -> str:
        """Command of the job; it runs the Python of the head's Ray, or of the environment that the job installs."""
        arguments = shlex.join(["-m", "dpaudit", *self.arguments])
        return (
            f'{HEAD_PYTHON}; exec "${{python:-python}}" {arguments}' if not self.requirements else f"python {arguments}"
        )

    def key(self) -> str:
        """Return the name of the job, a hash of its command, files and requirements."""
        from ray._private.runtime_env.packaging import get_uri_for_directory

        hasher = hashlib.sha256(self.entrypoint.encode())
        for folder in (self.working_dir, *self.packages):
            uri = get_uri_for_directory(str(folder), include_gitignore=True, excludes=self.left_out())
            hasher.update(str(uri).encode())  # it holds a hash of the folder's content
        if self.requirements is not None:
            hasher.update(self.requirements.read_bytes())
        return PREFIX + hasher.hexdigest()[:20]

    def left_out(self) -> list[str]:
        """Return the patterns of files not to upload: version control, environments, and run folders."""
        runs = (plan.parent for pattern in ("*", "*/*") for plan in self.working_dir.glob(f"{pattern}/plan.parquet"))
        return [*ALWAYS_EXCLUDED, *sorted(f"/{run.relative_to(self.working_dir).as_posix()}" for run in runs)]

    def runtime_env(self) -> dict[str, Any]:
        """Return Ray's runtime environment. It has no environment variables: secrets belong to the cluster."""
        return {
            "working_dir": str(self.working_dir),
            "excludes": self.left_out(),
            **({"pip": str(self.requirements)} if self.requirements is not None else {}),
            **({"py_modules": [str(folder) for folder in self.packages]} if self.packages else {}),
        }


@dataclass(frozen=True)
class Submitted:
    """Result of a submission."""

    name: str  # of the job
    new: bool  # False if the job existed already
    state: str  # PENDING, RUNNING, STOPPED, SUCCEEDED or FAILED


class Jobs:
    """Client of a cluster's job server, at the address of its dashboard: "http://head:8265".

    Raises: SpecError for another kind of address; RunError if the server does not answer or refuses a request.
    """

    def __init__(self, address: str | None = None) -> None:
        self.address = address or os.environ.get("RAY_API_SERVER_ADDRESS") or ""
        parts = urlsplit(self.address)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise SpecError(
                "the address must be that of the cluster's dashboard, http://HOST:8265, got "
                f"{shortened(self.address or None)}. Give --address, or set RAY_API_SERVER_ADDRESS"
            )
        port = parts.port or (443 if parts.scheme == "https" else 80)
        try:
            socket.create_connection((parts.hostname, port), timeout=CONNECT_S).close()
        except OSError as err:
            raise RunError(
                f"no job server answers at {self.address}: {err.strerror or err}. Check that the cluster runs with its "
                "dashboard and that this machine can reach it"
            ) from err
        # The server accepted a direct connection: exclude it from the proxies of the environment.
        listed = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
        if parts.hostname not in listed.split(","):
            os.environ["no_proxy"] = os.environ["NO_PROXY"] = ",".join(filter(None, (listed, parts.hostname)))
        try:
            from ray.job_submission import JobSubmissionClient
        except ImportError as err:
            raise RunError('jobs need extra packages. Run `pip install "dpaudit[cluster]"`') from err
        self._client = self._request(lambda: JobSubmissionClient(self.address))
        for name in ("ray.dashboard.modules.dashboard_sdk", "ray._private.runtime_env.packaging"):
            logging.getLogger(name).setLevel(logging.WARNING)  # they log every package

    @staticmethod
    def is_name(word: str) -> bool:
        return word.startswith(PREFIX)

    def failure(self, name: str) -> str:
        """Return state and message of a job that has not succeeded; "" if it has."""
        state = self.state(name)
        return "" if state == SUCCEEDED else f"{state}; {self.message(name)}"

    def submit(self, job: Job) -> Submitted:
        """Start a job unless it runs or has succeeded; a job that failed starts again.

        A persistent run folder keeps its finished units. The job server accepts a name once: of two simultaneous
        submissions of the same job, one starts it, and the other gets the running job.
        """
        key = job.key()
        for attempt in range(1, MAX_TRIES):
            name = key if attempt == 1 else f"{key}-{attempt}"
            state = self._state(name)
            if state is None:
                if self._begin(job, name):
                    return Submitted(name, True, "PENDING")
                state = self.state(name)  # another process submitted the same job meanwhile
            if state in (*UNFINISHED, SUCCEEDED):
                return Submitted(name, False, state)
        raise RunError(f"{key} failed {MAX_TRIES} times. Read its logs first")

    def _begin(self, job: Job, name: str) -> bool:
        """Start the job under this name; return False if the server has a job of that name already."""
        try:
            more = {"runtime_env": job.runtime_env(), "metadata": dict(job.metadata)}
            self._request(lambda: self._client.submit_job(entrypoint=job.entrypoint, submission_id=name, **more))
        except RunError as err:
            if "already exists" in str(err.__cause__):
                return False
            raise
        return True

    def state(self, name: str) -> str:
        """Return PENDING, RUNNING, STOPPED, SUCCEEDED or FAILED.

        Raises: RunError if there is no such job.
        """
        state = self._state(name)
        if state is None:
            names = [job.submission_id or "" for job in self._request(self._client.list_jobs)]
            own_jobs = filter(self.is_name, names)
            raise RunError(
                f"{self.address} knows no job {shortened(name)}, only {shortened(', '.join(own_jobs) or 'none')}"
            )
        return state

    def _state(self, name: str) -> str | None:
        def ask() -> str | None:
            try:
                return str(self._client.get_job_status(name).value)
            except RuntimeError as err:
                if "does not exist" in str(err):
                    return None
                raise

        return self._request(ask)

    def message(self, name: str) -> str:
        """Return the cluster's message about the end of the job in one line; "" if there is none."""
        info = self._request(lambda: self._client.get_job_info(name))
        if any(words in str(info.message) for words in ("No module named dpaudit", "python: not found")):
            return "`python` of the cluster's head has no dpaudit. Submit with --ship, or install dpaudit there"
        return " ".join(str(info.message or "").partition(", last available logs")[0].split())[:500]

    def logs(self, name: str, *, follow: bool = False) -> Iterator[str]:
        """Yield the log of the job; with `follow`, new parts until the job ends."""
        printed_count = 0
        while True:
            ended = self.state(name) not in UNFINISHED
            text = self._request(lambda: self._client.get_job_logs(name))
            if len(text) > printed_count:
                yield text[printed_count:]
                printed_count = len(text)
            if ended or not follow:
                return
            time.sleep(POLL_S)

    def stop(self, name: str) -> str:
        """Stop a job, wait until it has stopped, and return its state. Its finished units are kept."""
        self.state(name)
        self._request(lambda: self._client.stop_job(name))
        until = time.monotonic() + STOP_S
        while (state := self.state(name)) in UNFINISHED and time.monotonic() < until:
            time.sleep(POLL_S)
        return state

    def _request(self, ask: Callable[[], T]) -> T:
        """Return the answer of the job server; raise RunError if it refuses."""
        from ray.exceptions import AuthenticationError

        try:
            return ask()
        except AuthenticationError as err:
            raise RunError(
                f"the job server at {self.address} rejected the token. Set RAY_AUTH_MODE=token, and "
                "RAY_AUTH_TOKEN_PATH to the file of the cluster's token"
            ) from err
        except (RuntimeError, OSError, ValueError) as err:
            lines = str(err).strip().splitlines() or [type(err).__name__]
            raise RunError(f"the job server at {self.address} refused: {shortened(lines[-1])}") from err
