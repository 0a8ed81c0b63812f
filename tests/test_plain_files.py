"""Only regular files are opened in folders that another user may control."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from dpaudit import plain_files
from dpaudit.errors import RunError
from dpaudit.plain_files import (
    new_file,
    open_for_update,
    open_to_read,
    private_folder,
    read_bytes,
    recreate_file,
    require_plain,
    user_folder,
)


def _socket(path: Path) -> None:
    os.chdir(path.parent)  # the path of a socket is short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path.name)


ODD: dict[str, Callable[[Path], object]] = {
    "a link": lambda path: path.symlink_to("/etc/passwd"),
    "a link that ends nowhere": lambda path: path.symlink_to("nowhere"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link to a folder": lambda path: path.symlink_to("/tmp"),
    "a named pipe": os.mkfifo,
    "a socket": _socket,
    "a device": lambda path: os.mknod(path, 0o600 | 0o020000, os.makedev(1, 5)),
}


@pytest.mark.parametrize("kind", ODD)
def test_other_kinds_of_files_are_refused_at_any_depth(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    inside = tmp_path / "run" / "scores" / "one"
    inside.mkdir(parents=True)
    (inside / "00000.parquet").write_bytes(b"x")
    require_plain(tmp_path / "run")
    try:
        ODD[kind](inside / "odd")
    except PermissionError:
        pytest.skip("only root may create a device")
    with pytest.raises(RunError, match=r"odd must be a plain file, it is a (link|named pipe|socket|device)"):
        require_plain(tmp_path / "run")
    for open_file in (open_to_read, lambda path: open_for_update(path, os.O_RDWR | os.O_CREAT)):
        with pytest.raises(RunError, match="must be a plain file"):
            open_file(inside / "odd")
    with recreate_file(inside / "odd") as file:  # replaces it, and does not write through it
        file.write(b"mine")
    assert (inside / "odd").read_bytes() == b"mine"
    require_plain(tmp_path / "run")


def test_a_missing_folder_is_accepted(tmp_path: Path) -> None:
    require_plain(tmp_path / "none")
    require_plain(tmp_path / ("n" * 300))


def test_a_file_with_another_hard_link_is_not_changed_in_place(tmp_path: Path) -> None:
    (tmp_path / "thesis").write_text("years of work")
    os.link(tmp_path / "thesis", tmp_path / "events.jsonl")
    with pytest.raises(RunError, match="must have no other hard link"):
        open_for_update(tmp_path / "events.jsonl", os.O_RDWR | os.O_CREAT)
    assert read_bytes(tmp_path / "events.jsonl") == b"years of work"
    with recreate_file(tmp_path / "events.jsonl"):
        pass
    assert (tmp_path / "thesis").read_text() == "years of work"


def test_a_sparse_file_is_refused_and_one_with_few_holes_is_read(tmp_path: Path) -> None:
    with (tmp_path / "holes").open("wb") as file:
        file.write(b"PAR1")
        file.truncate(10 << 30)
    with pytest.raises(RunError, match="most of its 10,737,418,240 bytes are holes"):
        open_to_read(tmp_path / "holes")
    size = plain_files.SPARSE_CHECK_BYTES
    with (tmp_path / "some").open("wb") as file:
        file.write(os.urandom(size))
        file.truncate(size + size // 2)
    assert len(read_bytes(tmp_path / "some")) == size + size // 2


def test_a_file_above_the_memory_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x").write_bytes(b"12345")
    monkeypatch.setattr(plain_files, "SMALL_FILE_BYTES", 4)
    monkeypatch.setattr(plain_files, "max_read_bytes", lambda: 4)
    with pytest.raises(RunError, match=r"x must fit into half of the free memory, 4 bytes, it takes 5$"):
        read_bytes(tmp_path / "x")


def test_a_new_file_replaces_nothing(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "not yet")
    for name in ("there", "link"):
        with pytest.raises(FileExistsError):
            new_file(tmp_path / name)
    assert (tmp_path / "there").read_text() == "mine"
    assert not (tmp_path / "not yet").exists()


def test_a_private_folder_belongs_to_this_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert private_folder(tmp_path / "own").stat().st_mode & 0o777 == 0o700
    (tmp_path / "open").mkdir(mode=0o755)
    assert private_folder(tmp_path / "open").stat().st_mode & 0o777 == 0o700
    (tmp_path / "link").symlink_to(tmp_path / "own")
    (tmp_path / "file").touch()
    for name in ("link", "file"):
        with pytest.raises(RunError, match="is not a folder, or belongs to another user"):
            private_folder(tmp_path / name)
    monkeypatch.setattr(plain_files.os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(RunError, match="another user"):
        private_folder(tmp_path / "own")


def test_a_user_without_a_home_gets_temporary_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    for home in (tmp_path / "home", tmp_path / "missing" / "home"):
        monkeypatch.setenv("HOME", str(home))
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        assert user_folder("XDG_CACHE_HOME", ".cache") == home / ".cache"
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        assert user_folder("XDG_CACHE_HOME", ".cache") == tmp_path / "cache"
    temporary = tmp_path / "tmp" / f"dpaudit-of-{os.geteuid()}"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert user_folder("XDG_CACHE_HOME", ".cache") == temporary
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert user_folder("XDG_CACHE_HOME", ".cache") == temporary
    assert temporary.stat().st_mode & 0o777 == 0o700


def test_compiled_code_is_cached_without_a_home(tmp_path: Path) -> None:
    """Numba would refuse to compile where it can write neither next to the package nor in the home folder."""
    code = "import os; os.access = lambda *_: False; import dpaudit; print(os.environ['NUMBA_CACHE_DIR'])"
    environment = {**os.environ, "HOME": "/nonexistent", "TMPDIR": str(tmp_path)}
    environment.pop("NUMBA_CACHE_DIR", None)
    answer = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == str(tmp_path / f"dpaudit-of-{os.geteuid()}" / "numba")
