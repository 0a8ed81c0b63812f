"""A user who opens files of a stranger: home, secrets, and all changes that follow.

Changes are detected by walking the file system before and after, by remaining processes, and by an audit hook in
every Python process (`watching/sitecustomize.py`), so that unexpected changes are found too.
"""

from __future__ import annotations

import hashlib
import os
import re
import signal
import stat
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tests.warm import left_by_commands, run_warm

ROOT = Path(__file__).parents[2]
WATCHING = Path(__file__).parent / "watching"
SECRETS = {"AWS_SECRET_ACCESS_KEY": "aws-secret-1f3e7c55", "GITHUB_TOKEN": "ghp-token-9b2d4a66"}
FONTS = Path(tempfile.gettempdir()) / "dpaudit-tests-fonts"
"""matplotlib's list of fonts, created once for all readers."""
BAD_SIGNS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Control characters except tab and newline, and characters that change the direction of text."""


@dataclass(frozen=True)
class Opened:
    """Effects of one command.

    Attributes:
        code: Exit code; None if it was killed after its time limit.
        out: Standard output.
        err: Standard error.
        seconds: Duration.
        changed: Paths outside the stranger's folder that were added, removed or changed.
        written: Paths outside the reader's own places that Python processes opened for writing, moved or removed.
        spoken: Addresses that Python processes contacted or looked up, except Unix sockets.
        left_over: Command lines of processes that still run.
    """

    code: int | None
    out: str
    err: str
    seconds: float
    changed: tuple[str, ...]
    written: tuple[str, ...]
    spoken: tuple[str, ...]
    left_over: tuple[str, ...]

    def harmless(self) -> None:
        """Assert that nothing outside the folder happened, and that the output has no traceback, secret or control
        character."""
        assert self.code is not None, f"hung:\n{self.out}\n{self.err}"
        assert not self.changed, self.changed
        assert not self.written, self.written
        assert not self.spoken, self.spoken
        assert not self.left_over, self.left_over
        output = self.out + self.err
        assert "Traceback" not in output, output
        assert "unexpected error" not in output, output
        assert not BAD_SIGNS.search(output), BAD_SIGNS.findall(output)
        for secret in SECRETS.values():
            assert secret not in output, output

    def refused(self, *words: str) -> None:
        """Assert that the command was harmless and ended with one refusal that contains these words."""
        self.harmless()
        assert self.code in (2, 3), (self.code, self.out, self.err)
        last = " ".join(self.err.split("dpaudit: ")[-1].split())
        assert last, self.err
        for word in words:
            assert word in last, last


class Reader:
    """A home with secrets, a working folder and a stranger's folder, all below `root`.

    `root/home` and `root/work` belong to the reader, `root/tmp` is the temporary folder, `root/stranger` holds the
    foreign files, and `root/else` is any other place. dpaudit may write its notes and caches below
    `root/home/.local/state` and `root/home/.cache`, and temporary files below `root/tmp`.
    """

    patience_s = 10.0
    """Time that remaining processes have to end."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.home, self.work, self.tmp = root / "home", root / "work", root / "tmp"
        self.stranger, self.elsewhere = root / "stranger", root / "else"
        for folder in (self.home, self.work, self.tmp, self.stranger, self.elsewhere):
            folder.mkdir(parents=True, exist_ok=True)
        (self.home / ".ssh").mkdir(exist_ok=True)
        (self.home / ".ssh" / "id_ed25519").write_text("a private key\n")
        (self.home / ".bashrc").write_text("export EDITOR=vi\n")
        (self.elsewhere / "thesis.tex").write_text("years of work\n")
        self._mark = uuid.uuid4().hex
        self._log = root / "watched.log"

    def environment(self, **more: str) -> dict[str, str]:
        """Return the environment of the reader's shell."""
        own_values = {
            "HOME": str(self.home),
            "XDG_STATE_HOME": str(self.home / ".local" / "state"),
            "XDG_CACHE_HOME": str(self.home / ".cache"),
            "TMPDIR": str(self.tmp),
            "PYTHONPATH": os.pathsep.join((str(WATCHING), str(ROOT / "editable"))),
            "PYTHONDONTWRITEBYTECODE": "1",
            "MPLCONFIGDIR": str(FONTS),
            "WATCHED_LOG": str(self._log),
            "WATCHED_MARK": self._mark,
            **SECRETS,
        }
        return {**os.environ, **own_values, **more}

    def opens(
        self, *arguments: str | Path, cwd: Path | None = None, time_limit_s: float = 120.0, **environment: str
    ) -> Opened:
        """Run `dpaudit ARGUMENTS`, in `work` by default, from a warm start."""
        return self._watched(list(map(str, arguments)), cwd, time_limit_s, environment, run_warm)

    def starts(
        self, *arguments: str | Path, cwd: Path | None = None, time_limit_s: float = 120.0, **environment: str
    ) -> Opened:
        """Run `dpaudit ARGUMENTS` in a new Python process, for tests of imports and of remaining processes."""
        command = [sys.executable, "-m", "dpaudit", *map(str, arguments)]
        return self.runs(command, cwd=cwd, time_limit_s=time_limit_s, environment=environment)

    def runs(
        self,
        command: Sequence[str],
        *,
        cwd: Path | None = None,
        time_limit_s: float = 120.0,
        environment: Mapping[str, str] | None = None,
    ) -> Opened:
        """Run any command as the reader."""
        return self._watched(command, cwd, time_limit_s, environment or {}, _run_cold)

    def _watched(
        self,
        command: Sequence[str],
        cwd: Path | None,
        time_limit_s: float,
        environment: Mapping[str, str],
        run: Callable[..., int | None],
    ) -> Opened:
        self._log.write_bytes(b"")
        before = self._walk()
        began = time.monotonic()
        with tempfile.TemporaryFile() as out_file, tempfile.TemporaryFile() as err_file:
            code = run(
                command,
                cwd=cwd or self.work,
                environment=self.environment(**environment),
                out=out_file,  # files instead of pipes, which a remaining process would keep open
                err=err_file,
                time_limit_s=time_limit_s,
            )
            out, err = (_text(file) for file in (out_file, err_file))
        seconds = time.monotonic() - began
        left_over = tuple(self._left_over_files())
        after = self._walk()
        changed = tuple(sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path)))
        return Opened(code, out, err, seconds, changed, tuple(self._written()), tuple(self._spoken()), left_over)

    def _walk(self) -> dict[str, tuple[object, ...]]:
        """Return type and content of every path outside the stranger's folder and dpaudit's own places."""
        return {str(path): _path_state(path) for path in self._others(self.root)}

    def _others(self, folder: Path) -> Iterator[Path]:
        for entry in sorted(folder.iterdir()):
            if entry == self._log or self._may_be_written(entry):
                continue
            yield entry
            if entry.is_dir() and not entry.is_symlink():
                yield from self._others(entry)

    def _may_be_written(self, path: Path) -> bool:
        if path.is_relative_to(ROOT) and "__pycache__" in path.parts:  # compiled code of dpaudit
            return True
        state, cache = self.home / ".local" / "state" / "dpaudit", self.home / ".cache" / "dpaudit"
        allowed = (self.stranger, state, cache, FONTS)
        parents = (self.home / ".local", self.home / ".local" / "state", self.home / ".cache")
        return path in parents or any(path.is_relative_to(place) for place in allowed)

    def _written(self) -> Iterator[str]:
        """Yield paths opened for writing, with links resolved."""
        for _, event, details in self._noted():
            if event.startswith("socket."):
                continue
            for path in re.findall(r"'([^']*)'", details):
                real = Path(os.path.realpath(path))
                inside = real.is_relative_to(self.tmp) or self._may_be_written(real)
                if not inside and not str(real).startswith(("/dev/", "/proc/")):
                    yield f"{event} {path}" + ("" if str(real) == path else f" -> {real}")

    def _spoken(self) -> Iterator[str]:
        for _, event, details in self._noted():
            if event.startswith("socket.") and details.startswith("("):
                yield f"{event} {details}"

    def _noted(self) -> Iterator[tuple[str, str, str]]:
        for line in self._log.read_text(errors="replace").splitlines():
            process, event, details = line.split(" ", 2)
            yield process, event, details

    def _left_over_files(self) -> Iterator[str]:
        """Yield command lines of processes started by commands that do not end in time, and kill them."""
        end = time.monotonic() + self.patience_s
        while (pids := list(self._marked())) and time.monotonic() < end:
            time.sleep(0.05)
        for pid in pids:
            try:
                yield Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ")
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue

    def _marked(self) -> Iterator[int]:
        below = set(left_by_commands())  # a forked process may hide its environment from other processes
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                environment = (entry / "environ").read_bytes()
                zombie = (entry / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
            except OSError:
                continue
            marked = f"WATCHED_MARK={self._mark}".encode() in environment or int(entry.name) in below
            if marked and not zombie:
                yield int(entry.name)


def _run_cold(
    command: Sequence[str],
    *,
    cwd: Path,
    environment: Mapping[str, str],
    out: IO[bytes],
    err: IO[bytes],
    time_limit_s: float,
) -> int | None:
    process = subprocess.Popen(
        command, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
    )
    try:
        return process.wait(time_limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return None


def _path_state(path: Path) -> tuple[object, ...]:
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        return "link", os.readlink(path)
    if stat.S_ISREG(status.st_mode):
        return "file", status.st_mode, status.st_size, hashlib.sha256(path.read_bytes()).hexdigest()
    return "other", status.st_mode


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")
