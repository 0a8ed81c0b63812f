"""Files where somebody else may have put something: plain ones alone are opened, and never through a link.

What stands in place of a file of a run may be a link to a file of the reader's, a pipe that never answers, a device, or
gigabytes of holes. Whoever opens a folder looks at all of it once (`require_plain`); whoever opens a file looks at
what was really opened, so that nothing can be changed in between.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import socket
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from dpaudit.errors import RunError, printable, shortened

SMALL = 1_000_000  # bytes: to ask for the free memory takes longer than to read such a file
HOLES_FROM = 16 << 20  # files of so many bytes and more must hold at least half of them: none here have holes

_KINDS = {
    stat.S_IFLNK: "a link",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}
_LIMITS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)
"""Of a container, and what it uses of it: control groups of version 2, and of version 1."""


def require_plain(folder: Path) -> None:
    """Refuses a folder that holds anything but files and folders, at any depth; one that is not there holds nothing."""
    waiting = [os.fspath(folder)]
    while waiting:
        inside = waiting.pop()
        try:
            with os.scandir(inside) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    elif not entry.is_file(follow_symlinks=False):
                        _require_file(entry.path)
        except OSError as err:
            if err.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):
                why = os.strerror(err.errno) if err.errno else shortened(err)
                raise RunError(f"{printable(shortened(inside, 300))} must be a folder that can be read: {why}") from err


def _require_file(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):  # gone since: a run that goes on writes here
        found = os.lstat(path)
        if not stat.S_ISREG(found.st_mode):
            raise _refusal(path, found)


def _refusal(path: str | Path, found: os.stat_result) -> RunError:
    kind = _KINDS.get(stat.S_IFMT(found.st_mode), "something else")
    return RunError(
        f"{printable(shortened(path, 300))} must be a plain file, it is {kind}; a run folder holds files and folders "
        "alone: look where it comes from, then take it away"
    )


def opened(path: Path, flags: int) -> int:
    """A descriptor of a plain file, opened, or created by `flags`, without following a link or waiting for anybody.

    Raises: RunError when it is no plain file; OSError as `os.open`.
    """
    try:
        file = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as err:
        if err.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):  # a link; a pipe or socket without its other end
            raise _refusal(path, os.lstat(path)) from err
        raise
    found = os.fstat(file)
    if not stat.S_ISREG(found.st_mode):
        os.close(file)
        raise _refusal(path, found)
    return file


def opened_in_place(path: Path, flags: int) -> int:
    """The same, of a file that is changed where it is: RunError too where it has a second name, as another's file."""
    file = opened(path, flags)
    if os.fstat(file).st_nlink > 1:
        os.close(file)
        raise RunError(
            f"{printable(shortened(path, 300))} must be a file of its own, it has a second name elsewhere (a hard "
            "link) and would be changed there too; copy it, and put the copy in its place"
        )
    return file


def reading(path: Path) -> BinaryIO:
    """A plain file, open to be read; RunError when it is none, or one of holes, OSError when it cannot be opened."""
    # With an opener, so that the file knows its name; whoever asks for it closes it.
    file = open(path, "rb", opener=lambda _, flags: opened(path, flags))  # noqa: SIM115
    size = os.fstat(file.fileno()).st_size
    if size >= HOLES_FROM and _held(file.fileno(), size) < size // 2:
        file.close()
        raise RunError(
            f"{printable(shortened(path, 300))} must hold what its size says, most of its {size:,} bytes are holes"
        )
    return file


def bytes_of(path: Path) -> bytes:
    """All of a plain file; raises as `reading`, and RunError when it is too large for the memory."""
    with reading(path) as file:
        return all_of(file)


def all_of(file: BinaryIO) -> bytes:
    """All of an open file, unless it is too large for the memory."""
    require_fits(os.fstat(file.fileno()).st_size, file.name)
    return file.read()


def require_fits(size: int, name: object) -> None:
    """Refuses what would not fit into the memory."""
    if size > SMALL and size > (most := readable_bytes()):
        raise RunError(
            f"{printable(shortened(name, 300))} must fit into half of the memory that is free, {most:,} bytes, it "
            f"takes {size:,}"
        )


def _held(file: int, size: int) -> int:
    """Bytes of a file that are no holes; all of them on file systems that do not tell."""
    held, at = 0, 0
    while at < size and held < size // 2:
        try:
            at = os.lseek(file, at, os.SEEK_DATA)
            end = os.lseek(file, at, os.SEEK_HOLE)
        except OSError as err:
            if err.errno != errno.ENXIO:  # nothing but holes from here on
                held = size
            break
        held, at = held + end - at, end
    os.lseek(file, 0, os.SEEK_SET)
    return held


def created(path: Path) -> BinaryIO:
    """A file that is written anew; what a killed process has left under its name goes, whatever it leads to."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    return new_file(path)


def new_file(path: Path) -> BinaryIO:
    """A file that was not there, open to be written."""
    return os.fdopen(opened(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb")


def noted_at(kind: str, name: str | Path) -> Path:
    """Return the file in this user's home that holds what was noted of `name`; each kind of note has its own folder."""
    state = Path(os.environ.get("XDG_STATE_HOME") or Path("~/.local/state").expanduser())
    return state / "dpaudit" / kind / hashlib.sha256(os.fsencode(name)).hexdigest()


def private_folder(path: Path) -> Path:
    """A folder for this user alone, made where it is not there; RunError when something of another's has its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise RunError(
            f"{printable(shortened(path, 300))} must be a folder that is yours alone, something else or another user's "
            "has its name; take it away, or set TMPDIR and XDG_CACHE_HOME to folders of your own"
        )
    if stat.S_IMODE(found.st_mode) & 0o077:
        os.chmod(path, 0o700)
    return path


def readable_bytes() -> int:
    """What one file may take in memory: half of what is free on this machine, or in this container."""
    free = [_free_of_machine(), *(_free_of_container(*paths) for paths in _LIMITS)]
    return min(bytes_ for bytes_ in free if bytes_ is not None) // 2


def _free_of_machine() -> int:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, StopIteration):  # another system than Linux
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if sys.platform != "win32" else 1 << 32


def _free_of_container(limit: str, used: str) -> int | None:
    try:
        return max(0, int(Path(limit).read_text(encoding="ascii")) - int(Path(used).read_text(encoding="ascii")))
    except (OSError, ValueError):  # "max": there is none
        return None


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Has a file written under another name in the same folder, then renames it; it appears in one step."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with created(partial) as file:
            write(file)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def write_asked(path: Path, content: bytes, more: str = "") -> None:
    """Write a file that the user named; RunError where it cannot be written, with what more there is to say.

    A plain file is replaced in one step, a link keeps leading to the file that is written, and a device, a pipe, a
    socket or a descriptor (`/dev/stdout`, `/dev/fd/5`) is written into.
    """
    _write_asked(path, content, more, add=False)


def add_asked(path: Path, content: bytes, more: str = "") -> None:
    """Write as `write_asked`, behind what a plain file holds already."""
    _write_asked(path, content, more, add=True)


def _write_asked(path: Path, content: bytes, more: str, *, add: bool) -> None:
    try:
        if written_into(path):
            with _direct(path) as file:
                file.write(content)
        else:
            _replace(Path(os.path.realpath(path)), content, add=add)
    except OSError as err:
        must = f"{shortened(path)} must be a file that can be written, it is not: {err.strerror or shortened(err)}"
        raise RunError(must + more) from err


def written_into(path: Path) -> bool:
    """True if what has this name is neither a plain file nor absent, or is a descriptor of this process.

    To rename a file over such a name would end what it stands for: `/dev/null` for the whole machine, where root asks.
    """
    if _own_descriptor(path) is not None:
        return True
    try:
        target = os.stat(path)
    except FileNotFoundError:  # nothing, or a link to nothing
        return False
    if not stat.S_ISREG(target.st_mode):
        return True
    try:
        return not os.path.samestat(os.stat(os.path.realpath(path)), target)
    except FileNotFoundError:  # a file without a name, which only a link of /proc leads to
        return True


def _own_descriptor(path: Path) -> int | None:
    """The number of the descriptor of this process that a path names, as `/dev/stdout` does; None if it names none."""
    homes = {os.path.realpath(folder) for folder in ("/proc/self/fd", "/dev/fd")}
    name = os.path.abspath(path)
    for _ in range(40):  # links in a row that a system follows
        folder, last = os.path.split(name)
        if last.isdecimal() and os.path.realpath(folder) in homes:
            return int(last)
        try:
            name = os.path.join(folder, os.readlink(name))
        except OSError:  # no link
            return None
    return None


def _direct(path: Path) -> BinaryIO:
    """Something that is no plain file with a name, open to be written into; a pipe waits for its reader."""
    number = _own_descriptor(path)
    if number is not None:  # opened by its name, a file that it leads to would be written from its beginning
        return os.fdopen(os.dup(number), "wb")
    if stat.S_ISSOCK(os.stat(path).st_mode):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connected:
            connected.connect(os.fspath(path))
            return os.fdopen(connected.detach(), "wb")
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_NOCTTY | os.O_CLOEXEC), "wb")


def _replace(path: Path, content: bytes, *, add: bool) -> None:
    """Make a plain file, or replace one, which keeps its permissions.

    One that nothing can take the place of is written where it is.
    """
    try:
        mode = stat.S_IMODE(os.stat(path).st_mode)
    except FileNotFoundError:
        write_whole(path, lambda file: file.write(content))
        return
    whole = path.read_bytes() + content if add else content

    def write(file: BinaryIO) -> None:
        os.fchmod(file.fileno(), mode)
        file.write(whole)

    try:
        write_whole(path, write)
    except OSError as err:  # a folder of others', or a file that is mounted by itself, as into a container
        if err.errno not in (errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY):
            raise
        with path.open("wb") as file:
            file.write(whole)
