"""The command in a process of its own, watched by the one that was started: its exit code means what it says.

Code of the user's runs in the process of the command, and may end it (`os._exit(0)`), crash it, or be killed for its
memory. Only the command can say how it ended: it leaves its exit code in a pipe as its last act. A process that ends
without doing so has failed, whatever its exit code. What it leaves running ends with it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
import traceback
from types import FrameType

from dpaudit.actors.audited.leftover_processes import adopt_orphans, end_children
from dpaudit.actors.audited.signals import signals_interrupt
from dpaudit.engine.exits import BAD_INPUT, FINISHED, RUN_FAILED, Ended, put_doors, tell

ORDERLY_S = 20.0  # for so long a command whose supervisor was killed may put things in order
OVER_S = 5.0  # a command that has said how it ended, and has not so long after, is held up by code that it ran


def main() -> None:
    """Runs the command line and ends with its exit code; 3 when it could not leave one."""
    if sys.platform == "win32":
        sys.exit(_command())
    said, say = os.pipe()
    life, hold = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(said)
        os.close(hold)
        threading.Thread(target=_end_with_supervisor, args=(life,), daemon=True).start()
        code = _command()
        with contextlib.suppress(BrokenPipeError):  # the supervisor was killed
            os.write(say, bytes([code]))
        sys.exit(code)
    os.close(say)
    adopt_orphans()
    _forward_signals(child)
    last_word, ended = list[int](), threading.Event()
    hears = threading.Thread(target=_hear, args=(said, last_word, child, ended), daemon=True)
    hears.start()
    _, status = os.waitpid(child, 0)
    ended.set()
    end_children()  # what it left running; none holds the other end of the pipe any more
    hears.join(OVER_S)
    if not last_word:
        from dpaudit.cluster.session import remove_left_sessions

        remove_left_sessions()
        tell(f"dpaudit: the command {_ending(status)} before it was done; {KEPT}")
    sys.exit(last_word[0] if last_word else RUN_FAILED)


KEPT = "what was finished is kept, `dpaudit resume RUN` goes on"


def _command() -> int:
    """The exit code of the command; user code that ends the program is no part of it."""
    put_doors()
    from dpaudit.engine.cli.main import main as command

    try:
        with signals_interrupt():
            command(prog_name="dpaudit")
    except Ended as end:
        return int(end.code)
    except SystemExit as end:  # the parser's: nothing to do, or a wrong option
        return int(end.code or FINISHED) if end.code in (None, FINISHED, BAD_INPUT) else RUN_FAILED
    except KeyboardInterrupt:  # while an earlier one was being dealt with
        return RUN_FAILED
    except BaseException:
        tell(traceback.format_exc())
        return RUN_FAILED
    return FINISHED


def _forward_signals(child: int) -> None:
    """What reaches the process that was started is meant for the one that works; a terminal's Ctrl-C reaches both."""

    def forward(number: int, frame: FrameType | None) -> None:
        os.kill(child, number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, forward)


def _end_with_supervisor(life: int) -> None:
    """Waits until the other end of the pipe is gone, and with it the supervisor."""
    if os.read(life, 1) == b"":
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(ORDERLY_S)
        os._exit(RUN_FAILED)


def _hear(said: int, word: list[int], child: int, ended: threading.Event) -> None:
    """Waits for the last word, and ends a command that does not end after it."""
    word += os.read(said, 1)
    if word and not ended.wait(OVER_S):
        os.kill(child, signal.SIGKILL)


def _ending(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"was killed ({signal.Signals(os.WTERMSIG(status)).name})"
    return f"ended (exit code {os.WEXITSTATUS(status)})"
