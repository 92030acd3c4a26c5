"""What a refusal is: one line that says what is wrong."""

import errno
import os
from collections.abc import Callable
from typing import Any

import pytest


def refuses(message: str, call: Callable[..., Any], *given: Any, error: type[Exception] = ValueError, **named: Any) -> str:
    """What `call` of what is given raises: an `error` in one line that matches `message`."""
    with pytest.raises(error, match=message) as caught:
        call(*given, **named)
    line = str(caught.value)
    assert "\n" not in line
    return line


def raising(error: BaseException) -> Callable[..., None]:
    """What takes the place of a call, and raises."""

    def call(*told: Any, **named: Any) -> None:
        raise error

    return call


full = raising(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))  # of the system, on a full disk
