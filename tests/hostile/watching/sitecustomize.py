"""Loaded by every Python process of a watched reader: logs writes and contacted addresses."""

import os
import sys

_LOG = os.environ.get("WATCHED_LOG")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES = {"os.remove": 1, "os.rmdir": 1, "os.rename": 2, "os.link": 2, "os.chmod": 1, "os.mkdir": 1, "os.utime": 1}
"""Number of paths in the event; as many folders, to which they are relative, come last."""


def _note(event, arguments):
    if event in ("socket.connect", "socket.sendto"):
        _say(event, arguments[1])
    elif event == "socket.getaddrinfo":
        _say(event, arguments[:2])
    elif event == "open" and isinstance(arguments[0], (str, bytes)):
        mode, flags = arguments[1], arguments[2]
        if (flags or 0) & _WRITES if mode is None else set(mode) & set("wax+"):
            _say(event, [_absolute(arguments[0], -1)])
    elif event in _CHANGES:
        number = _CHANGES[event]
        _say(event, [_absolute(path, base) for path, base in zip(arguments[:number], arguments[-number:], strict=True)])
    elif event in ("os.symlink", "os.truncate"):
        _say(event, [_absolute(arguments[1] if event == "os.symlink" else arguments[0], -1)])


def _absolute(path, folder):
    """Return the absolute path of a path relative to an open folder or to the working folder."""
    if isinstance(path, int):
        return os.readlink(f"/proc/self/fd/{path}")
    base = os.readlink(f"/proc/self/fd/{folder}") if isinstance(folder, int) and folder >= 0 else os.getcwd()
    return os.path.join(base, os.fsdecode(path))


def _say(event, details):
    line = f"{os.getpid()} {event} {details!r}\n".encode(errors="replace")
    file = os.open(_LOG, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(file, line)
    finally:
        os.close(file)


if _LOG:
    _busy = False

    def _hook(event, arguments):
        global _busy
        if _busy or not (event == "open" or event.startswith(("socket.", "os."))):
            return
        _busy = True
        try:
            _note(event, arguments)
        finally:
            _busy = False

    sys.addaudithook(_hook)
