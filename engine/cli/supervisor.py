"""Run the command in a child process, so that audited code cannot fake the exit code.

Audited code runs in the child. It may end it (`os._exit(0)`), crash it, or have it killed for its memory. The command
therefore writes its exit code to a pipe as its last step. A child that ends without writing has failed, regardless of
its own exit code. Processes that it leaves running are ended.
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

from dpaudit.actors.audited.signals import adopt_orphans, end_children, signals_interrupt
from dpaudit.engine.exits import BAD_INPUT, FINISHED, RUN_FAILED, CommandExit, install_escaping_streams, tell

CLEANUP_S = 20.0  # time for the command to clean up after its supervisor was killed
EXIT_S = 5.0  # time for the command to end after it wrote its exit code; after that, audited code is blocking it


def main() -> None:
    """Run the command line in a child process and exit with its code, or with 3 if it wrote none."""
    if sys.platform == "win32":
        sys.exit(_command())
    result_pipe, result_writer = os.pipe()
    supervisor_pipe, supervisor_writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(result_pipe)
        os.close(supervisor_writer)
        threading.Thread(target=_end_with_supervisor, args=(supervisor_pipe,), daemon=True).start()
        code = _command()
        with contextlib.suppress(BrokenPipeError):  # the supervisor was killed
            os.write(result_writer, bytes([code]))
        sys.exit(code)
    os.close(result_writer)
    adopt_orphans()

    def forward(number: int, frame: FrameType | None) -> None:  # Ctrl-C in a terminal reaches both processes anyway
        os.kill(child, number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, forward)
    result, has_ended = list[int](), threading.Event()
    listener = threading.Thread(target=_read_result, args=(result_pipe, result, child, has_ended), daemon=True)
    listener.start()
    _, status = os.waitpid(child, 0)
    has_ended.set()
    end_children()  # after this, no process holds the writing end of the pipe
    listener.join(EXIT_S)
    if not result:
        from dpaudit.cluster.session import remove_left_sessions

        remove_left_sessions()
        tell(f"dpaudit: the command {_ending(status)} before it was done; finished units are kept, {RESUME}")
    sys.exit(result[0] if result else RUN_FAILED)


RESUME = "`dpaudit resume RUN` continues the run"


def _command() -> int:
    """Run the command and return its exit code; 3 if audited code ended the program."""
    install_escaping_streams()
    from dpaudit.engine.cli.main import main as command

    try:
        with signals_interrupt():
            command(prog_name="dpaudit")
    except CommandExit as err:
        return int(err.code)
    except SystemExit as err:  # from click's parser: help was printed, or an option is wrong
        return int(err.code or FINISHED) if err.code in (None, FINISHED, BAD_INPUT) else RUN_FAILED
    except KeyboardInterrupt:  # a second interrupt, while the first was being handled
        return RUN_FAILED
    except BaseException:
        tell(traceback.format_exc())
        return RUN_FAILED
    return FINISHED


def _end_with_supervisor(supervisor_pipe: int) -> None:
    """End this process when the supervisor is gone, which closes the other end of the pipe."""
    if os.read(supervisor_pipe, 1) == b"":
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(CLEANUP_S)
        os._exit(RUN_FAILED)


def _read_result(result_pipe: int, result: list[int], child: int, has_ended: threading.Event) -> None:
    """Read the command's exit code, and kill the command if it does not end afterwards."""
    result += os.read(result_pipe, 1)
    if result and not has_ended.wait(EXIT_S):
        os.kill(child, signal.SIGKILL)


def _ending(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"was killed ({signal.Signals(os.WTERMSIG(status)).name})"
    return f"ended (exit code {os.WEXITSTATUS(status)})"
