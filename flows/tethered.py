"""A program that ends with the process that started it, however that one ended.

One that is killed cannot stop what it started. So `start` runs the program under a watcher (this file, as a program) that reads a
pipe which only the starter holds open: at its end the watcher stops the program and all that this has started in turn. Both have
a session of their own, so that Ctrl-C reaches the starter alone.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from threading import Thread
from typing import Any

PATIENCE_S = 15.0  # from SIGINT to SIGKILL


def start(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Runs `command`; `options` are Popen's."""
    watched = [sys.executable, "-I", __file__, *command]
    return subprocess.Popen(watched, stdin=subprocess.PIPE, start_new_session=True, **options)


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ends what `start` began, its children too, and waits for it."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)
    try:
        process.wait(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.stdin:
        process.stdin.close()


def _watch() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *told: None)  # the program's to answer; a handler, because ignored ones would be inherited
    child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)

    def end() -> None:
        os.read(0, 1)  # until the starter is gone
        os.killpg(0, signal.SIGINT)
        time.sleep(PATIENCE_S)
        os.killpg(0, signal.SIGKILL)

    Thread(target=end, daemon=True).start()
    code = child.wait()
    os.killpg(0, signal.SIGTERM)
    sys.exit(code)


if __name__ == "__main__":
    _watch()
