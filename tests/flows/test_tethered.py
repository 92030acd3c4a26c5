"""What is started on a tether ends with its starter: stopped, or killed in a way that no one can answer."""

import socket
import subprocess
import sys

import pytest

from tokentape.flows import tethered

# A server whose child shares its socket and its output, and which says when it listens.
SERVER = """if True:
    import socket, subprocess, sys, time
    listening = socket.create_server(("127.0.0.1", 0))
    wait = "import time; time.sleep(600)"
    subprocess.Popen([sys.executable, "-c", wait], pass_fds=[listening.fileno()])
    print(listening.getsockname()[1], flush=True)
    time.sleep(600)
"""
STARTER = f"""if True:
    import sys, time
    from tokentape.flows import tethered
    tethered.start([sys.executable, "-c", {SERVER!r}])
    time.sleep(600)
"""
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no process groups there")


def test_a_killed_starter_leaves_nothing_that_holds_the_port() -> None:
    with subprocess.Popen([sys.executable, "-c", STARTER], stdout=subprocess.PIPE) as starter:
        assert starter.stdout is not None
        port = int(starter.stdout.readline())
        starter.kill()
        starter.stdout.read()  # until all that share it are gone: watcher, server and the server's child
    assert is_free(port)


def test_a_stopped_server_is_gone_and_a_finished_one_tells_its_code() -> None:
    process = tethered.start([sys.executable, "-c", SERVER], stdout=subprocess.PIPE)
    assert process.stdout is not None
    port = int(process.stdout.readline())
    assert not is_free(port)
    tethered.stop(process)
    process.stdout.read()
    process.stdout.close()
    assert is_free(port)
    ended = tethered.start([sys.executable, "-c", "import sys; sys.exit(7)"])
    assert ended.wait() == 7
    tethered.stop(ended)


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0
