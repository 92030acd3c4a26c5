"""What a refusal is: one line that says what is wrong."""

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
