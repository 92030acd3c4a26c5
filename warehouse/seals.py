"""A SHA-256 that a file carries of itself: over all its bytes, the place of the digits taken as zeros.

Bytes tell by themselves whether they are those that were written, before anything parses them.
"""

import hashlib
import re

_MARK = b"tokentape-sha256"
_DIGITS = 64
_TAIL_BYTES = 8  # of a Parquet file: the footer's length and PAR1
_EMPTY = b"0" * _DIGITS
_SEAL = re.compile(_MARK + rb":([0-9a-f]{%d}):" % _DIGITS + _MARK)
PLACE = b":".join((_MARK, _EMPTY, _MARK)).decode()  # to be written into the file, once and last of its kind


def sealed(data: bytes) -> bytes:
    """`data`, which holds PLACE, with the sum in it. Raises ValueError where there is no such place."""
    place = data.rfind(PLACE.encode())
    if place < 0:
        raise ValueError("no place for a sum")
    digits = place + len(_MARK) + 1
    return data[:digits] + hashlib.sha256(data).hexdigest().encode() + data[digits + _DIGITS :]


def sealed_parquet(data: bytes) -> bytes:
    """A Parquet file with its sum between the last page and the footer, where no reader looks; rows and schema stay the same."""
    footer = len(data) - _TAIL_BYTES - int.from_bytes(data[-_TAIL_BYTES:-4], "little")
    return sealed(data[:footer] + PLACE.encode() + data[footer:])


def is_whole(data: bytes) -> bool:
    """It carries a sum, and has not changed since."""
    places = list(_SEAL.finditer(data))
    if not places:
        return False
    found = places[-1]  # text before it may quote one
    digest = hashlib.sha256(data[: found.start(1)])
    digest.update(_EMPTY)
    digest.update(data[found.end(1) :])
    return digest.hexdigest().encode() == found[1]
