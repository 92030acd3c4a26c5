"""What annotations of arrays say, whichever form numpy gives them."""

from __future__ import annotations

from typing import Any, get_args, get_origin

import numpy as np
from numpy.typing import NDArray


def scalar_of(hint: Any) -> type[np.generic] | None:
    """The scalar of an annotation NDArray[scalar], None of any other. From 2.5 on numpy's NDArray is an alias, no ndarray."""
    inner = get_args(hint)[1] if get_origin(hint) is np.ndarray else hint if get_origin(hint) is NDArray else None
    return get_args(inner)[0] if inner is not None else None
