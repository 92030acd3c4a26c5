"""A local S3 server (moto), for tests and for the soak: in memory, in a process of its own that ends with the one that asked."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SERVER = """
import logging, sys
from moto.server import ThreadedMotoServer
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""
KEY, SECRET = "AKIATAPETAPETAPETAPE", "a-secret-that-nobody-may-read"


@contextmanager
def s3_server() -> Iterator[dict[str, str]]:
    """What the environment of its clients holds. It has no bucket yet."""
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([sys.executable, "-c", SERVER], text=True, **pipes) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            yield {
                "AWS_ENDPOINT_URL": f"http://127.0.0.1:{int(server.stdout.readline())}",
                "AWS_ACCESS_KEY_ID": KEY,
                "AWS_SECRET_ACCESS_KEY": SECRET,
                "AWS_DEFAULT_REGION": "us-east-1",
            }
        finally:
            server.stdin.close()
