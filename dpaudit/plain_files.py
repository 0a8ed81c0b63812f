"""Safe access to files in folders that another user may control: only regular files are opened, never through a link.

A name in a run folder may be a link to one of the reader's files, a pipe that never answers, a device, or a sparse file
of gigabytes. Code that opens a folder checks all of it once (`require_plain`). Code that opens a file checks the open
descriptor, so that the file cannot be exchanged between check and use.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import socket
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from dpaudit.errors import DataError, RunError, printable, shortened

SMALL_FILE_BYTES = 1_000_000  # a smaller file is read faster than the free memory is queried
SPARSE_CHECK_BYTES = 16 << 20  # a larger file must have at least half of its bytes allocated; dpaudit's files are dense

_SEAL = b"dpaudit-sha256:"  # precedes the checksum at the end of a sealed file

_KINDS = {
    stat.S_IFLNK: "a link",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}
_CGROUP_FILES = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)
"""Files with a container's memory limit and usage: cgroup version 2, then version 1."""


def require_plain(folder: Path) -> None:
    """Raise RunError if `folder` holds anything but regular files and folders, at any depth; it may be missing."""
    pending = [os.fspath(folder)]
    while pending:
        inside = pending.pop()
        try:
            with os.scandir(inside) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
                    elif not entry.is_file(follow_symlinks=False):
                        with contextlib.suppress(FileNotFoundError):  # deleted since: the run may still be writing
                            status = os.lstat(entry.path)
                            if not stat.S_ISREG(status.st_mode):
                                raise _not_plain_error(entry.path, status)
        except OSError as err:
            if err.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):
                why = os.strerror(err.errno) if err.errno else shortened(err)
                raise RunError(f"{printable(shortened(inside, 300))} must be a folder that can be read: {why}") from err


def _not_plain_error(path: str | Path, status: os.stat_result) -> RunError:
    kind = _KINDS.get(stat.S_IFMT(status.st_mode), "something else")
    return RunError(
        f"{printable(shortened(path, 300))} must be a plain file, it is {kind}. A run folder holds only files and "
        "folders. Find out who put it there, then remove it"
    )


def open_plain(path: Path, flags: int) -> int:
    """Return a descriptor of the regular file `path`, opened or created by `flags` without following links or blocking.

    Raises: RunError if it is not a regular file; OSError as `os.open`.
    """
    try:
        file = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as err:
        if err.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):  # a link; a pipe or socket without its other end
            raise _not_plain_error(path, os.lstat(path)) from err
        raise
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode):
        os.close(file)
        raise _not_plain_error(path, status)
    return file


def open_for_update(path: Path, flags: int) -> int:
    """Return a descriptor as `open_plain`, for writing in place; RunError too if the file has another hard link."""
    file = open_plain(path, flags)
    if os.fstat(file).st_nlink > 1:
        os.close(file)
        raise RunError(
            f"{printable(shortened(path, 300))} must have no other hard link: a write would change that file too. "
            "Replace it by a copy"
        )
    return file


def open_to_read(path: Path) -> BinaryIO:
    """Return the regular file `path`, open for reading.

    Raises: RunError if it is not a regular file, or is mostly holes; OSError if it cannot be opened.
    """
    # The opener gives the file object its name; the caller closes it.
    file = open(path, "rb", opener=lambda _, flags: open_plain(path, flags))  # noqa: SIM115
    size = os.fstat(file.fileno()).st_size
    if size >= SPARSE_CHECK_BYTES and _allocated_bytes(file.fileno(), size) < size // 2:
        file.close()
        raise RunError(
            f"{printable(shortened(path, 300))} must not be a sparse file, most of its {size:,} bytes are holes"
        )
    return file


def read_bytes(path: Path) -> bytes:
    """Return the content of a regular file; raises as `open_to_read`, and RunError if it exceeds the memory limit."""
    with open_to_read(path) as file:
        return read_all(file)


def read_named_file(path: str | Path) -> bytes:
    """Return the content of a regular file that a caller named. Raises: DataError if it cannot be read."""
    try:
        return read_bytes(Path(path))
    except (OSError, ValueError) as err:
        why = getattr(err, "strerror", None) or err
        raise DataError(f"{printable(shortened(path))} must be a file that can be read: {why}") from err


def read_all(file: BinaryIO) -> bytes:
    """Return the content of an open file; RunError if it exceeds the memory limit."""
    require_fits_memory(os.fstat(file.fileno()).st_size, file.name)
    return file.read()


def require_fits_memory(size: int, name: object) -> None:
    """Raise RunError if `size` bytes exceed the memory limit."""
    if size > SMALL_FILE_BYTES and size > (limit := max_read_bytes()):
        raise RunError(
            f"{printable(shortened(name, 300))} must fit into half of the free memory, {limit:,} bytes, it takes "
            f"{size:,}"
        )


def _allocated_bytes(file: int, size: int) -> int:
    """Return the allocated bytes, counted up to half of `size`; `size` if the file system reports no holes."""
    allocated, position = 0, 0
    while position < size and allocated < size // 2:
        try:
            position = os.lseek(file, position, os.SEEK_DATA)
            end = os.lseek(file, position, os.SEEK_HOLE)
        except OSError as err:
            if err.errno != errno.ENXIO:  # ENXIO: only holes from `position` on
                allocated = size
            break
        allocated, position = allocated + end - position, end
    os.lseek(file, 0, os.SEEK_SET)
    return allocated


def recreate_file(path: Path) -> BinaryIO:
    """Return a new file, open for writing, replacing any file, link or device with its name."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    return new_file(path)


def new_file(path: Path) -> BinaryIO:
    """Return a new file, open for writing; FileExistsError if `path` exists."""
    return os.fdopen(open_plain(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb")


def note_path(kind: str, name: str | Path) -> Path:
    """Return the path, in the user's state folder, of the note about `name`; each kind of note has its own folder."""
    return (
        user_folder("XDG_STATE_HOME", ".local/state") / "dpaudit" / kind / hashlib.sha256(os.fsencode(name)).hexdigest()
    )


def user_folder(variable: str, default: str) -> Path:
    """Return the folder that an environment variable names, else `default` in the home folder.

    Where it cannot be written, as in containers whose user has no home, return this user's temporary folder.
    """
    place = Path(os.environ.get(variable) or os.path.expanduser(f"~/{default}"))
    existing = next(folder for folder in (place, *place.parents) if folder.exists())
    return place if place.is_absolute() and os.access(existing, os.W_OK) else temporary_folder()


def temporary_folder() -> Path:
    """Return this user's folder in the temporary folder, found by later runs too; a new one if it is not usable."""
    try:
        return private_folder(Path(tempfile.gettempdir()) / f"dpaudit-of-{os.geteuid()}")
    except RunError:
        return Path(tempfile.mkdtemp(prefix="dpaudit-"))


def private_folder(path: Path) -> Path:
    """Return the folder `path`, created if missing, readable by this user only; RunError if another user owns it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise RunError(
            f"{printable(shortened(path, 300))} is not a folder, or belongs to another user. Remove it, "
            "or set TMPDIR and XDG_CACHE_HOME to your own folders"
        )
    if stat.S_IMODE(status.st_mode) & 0o077:
        os.chmod(path, 0o700)
    return path


def max_read_bytes() -> int:
    """Return the memory limit for one file, in bytes: half of the free memory of this machine or container."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free = [next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))]
    except (OSError, ValueError, StopIteration):  # not Linux
        free = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if sys.platform != "win32" else 1 << 32]
    for limit, used in _CGROUP_FILES:
        with contextlib.suppress(OSError, ValueError):  # no control group, or "max": no limit
            unused = int(Path(limit).read_text(encoding="ascii")) - int(Path(used).read_text(encoding="ascii"))
            free.append(max(0, unused))
    return min(free) // 2


def write_atomically(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file atomically: `write` fills a temporary file in the same folder, which is then renamed to `path`."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with recreate_file(partial) as file:
            write(file)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


class _HashingFile:
    """A file to write to that hashes what is written."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        self._file, self.hasher = file, hashlib.sha256(os.fsencode(name))

    def write(self, content: bytes) -> int:
        self.hasher.update(content)
        return self._file.write(content)

    def flush(self) -> None:
        self._file.flush()


def write_sealed(path: Path, write: Callable[[Any], object]) -> None:
    """Write a file as `write_atomically`, followed by a checksum of its name and content; create its folder."""

    def write_and_seal(file: BinaryIO) -> None:
        hashing = _HashingFile(file, path.name)
        write(hashing)
        file.write(_SEAL + hashing.hasher.digest())

    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, write_and_seal)


@contextlib.contextmanager
def open_sealed(path: Path) -> Iterator[BinaryIO]:
    """Yield a file of `write_sealed`, open for reading at its start; the checksum follows its content.

    Raises: RunError if content or name have changed since it was written; else as `open_to_read`.
    """
    with open_to_read(path) as file:
        hasher, size = hashlib.sha256(os.fsencode(path.name)), os.fstat(file.fileno()).st_size
        unread_bytes = max(0, size - len(_SEAL) - hasher.digest_size)
        while unread_bytes and (chunk := file.read(min(unread_bytes, 1 << 20))):
            hasher.update(chunk)
            unread_bytes -= len(chunk)
        if file.read() != _SEAL + hasher.digest():
            raise RunError("its content has changed since it was written, or it has no checksum")
        file.seek(0)
        yield file


def write_user_file(path: Path, content: bytes, hint: str = "", *, append: bool = False) -> None:
    """Write an output file named by the user.

    A regular file is replaced atomically, and a link is followed. A device, a pipe, a socket, a descriptor
    (`/dev/stdout`, `/dev/fd/5`) or a file with another hard link is written in place.

    Args:
        hint: Text appended to the error message.
        append: True to keep what a regular file holds, and to write behind it.
    Raises: RunError if the file cannot be written.
    """
    try:
        if must_write_in_place(path):
            with _open_special(path) as file:
                file.write(content)
        else:
            _write_plain(Path(os.path.realpath(path)), content, append=append)
    except OSError as err:
        raise _unwritable(path, err.strerror or shortened(err), hint) from err


def require_writable(path: Path) -> None:
    """Raise RunError if an output file cannot be written, before the work whose answer it will hold."""
    target = Path(os.path.realpath(path))
    if target.is_dir() or target.is_symlink():  # a link that remains leads to itself
        raise _unwritable(path, os.strerror(errno.EISDIR if target.is_dir() else errno.ELOOP))
    if not any(os.access(place, os.W_OK) for place in (path, target.parent)):
        raise _unwritable(path, os.strerror(errno.EACCES if target.parent.is_dir() else errno.ENOENT))


def _unwritable(path: Path, why: str, hint: str = "") -> RunError:
    return RunError(f"{shortened(path)} must be a file that can be written, it is not: {why}; name another file{hint}")


def must_write_in_place(path: Path) -> bool:
    """True if `path` is a device, pipe, socket or descriptor of this process, which a rename must not replace.

    A rename by root over `/dev/null` would remove the device for the whole machine.
    """
    if _descriptor_number(path) is not None:
        return True
    try:
        target = os.stat(path)
    except FileNotFoundError:  # missing, or a broken link
        return False
    if not stat.S_ISREG(target.st_mode):
        return True
    try:
        return not os.path.samestat(os.stat(os.path.realpath(path)), target)
    except FileNotFoundError:  # a deleted file, reachable only through /proc
        return True


def _descriptor_number(path: Path) -> int | None:
    """Return the descriptor number that `path` names, as `/dev/stdout` does; None if it names no descriptor."""
    descriptor_folders = {os.path.realpath(folder) for folder in ("/proc/self/fd", "/dev/fd")}
    name = os.path.abspath(path)
    for _ in range(40):  # Linux follows at most 40 links
        folder, last = os.path.split(name)
        if last.isdecimal() and os.path.realpath(folder) in descriptor_folders:
            return int(last)
        try:
            name = os.path.join(folder, os.readlink(name))
        except OSError:  # not a link
            return None
    return None


def _open_special(path: Path) -> BinaryIO:
    """Return a device, pipe, socket or descriptor, open for writing; opening a pipe waits for its reader."""
    number = _descriptor_number(path)
    if number is not None:  # opening by name would overwrite the start of a file that the descriptor appends to
        return os.fdopen(os.dup(number), "wb")
    if stat.S_ISSOCK(os.stat(path).st_mode):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(os.fspath(path))
            return os.fdopen(connection.detach(), "wb")
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_NOCTTY | os.O_CLOEXEC), "wb")


def _write_plain(path: Path, content: bytes, *, append: bool) -> None:
    """Create a regular file, or replace its content and keep its permissions.

    A file that cannot be replaced by a rename is written in place.
    """
    try:
        status = os.stat(path)
    except FileNotFoundError:
        write_atomically(path, lambda file: file.write(content))
        return
    new_content = path.read_bytes() + content if append else content

    def write(file: BinaryIO) -> None:
        os.fchmod(file.fileno(), stat.S_IMODE(status.st_mode))
        file.write(new_content)

    try:
        if status.st_nlink == 1:
            write_atomically(path, write)
            return
    except OSError as err:  # the folder is not writable, or the file itself is a mount point, as in a container
        if err.errno not in (errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY):
            raise
    with path.open("wb") as file:
        file.write(new_content)


Scratch: TypeAlias = str | Path  # folder of all units' checkpoints, or its URI


def is_remote(place: str | Path) -> bool:
    """True for a URI, such as s3://bucket/runs/mine; False for a path."""
    return "://" in str(place)


def join_place(place: str | Path, name: str) -> str:
    """Return the path or URI of the file or folder `name` in `place`."""
    path, question, options = str(place).partition("?") if is_remote(place) else (str(place), "", "")
    return f"{path.rstrip('/')}/{name}{question}{options}"


def require_no_credentials(uri: str) -> None:
    """Raise RunError if `uri` holds credentials."""
    if "@" in uri.partition("://")[2].partition("/")[0]:
        raise RunError(
            "a place must be named without credentials, because plans, logs and reports contain its name; set them in "
            "the environment (such as AWS_ACCESS_KEY_ID), or give the machine a role"
        )
