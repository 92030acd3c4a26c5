"""Arrays of numpy's .npy and .npz, read without numpy.load: no pickle, no allocation that a header merely claims. And torch files
of plain tensors and values, by torch's own reader of nothing else (weights_only).

`numpy.load` allocates what a header says before it has seen the bytes, hands out as it is whatever in the archive is no array,
and unpacks every zip method Python knows. Here sizes are compared first, and only what `numpy.savez` writes is read.
"""

import base64
import binascii
import io
import math
import tokenize
import warnings
import zipfile
import zlib
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from tokentape.capture.importers.limits import AS_SENT, BadImport, reason, shown, within

MAGIC = b"\x93NUMPY"
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_UNREADABLE = (ValueError, LookupError, TypeError, SyntaxError, ArithmeticError, tokenize.TokenError)  # numpy parses the header
_REMEDY = "export it again with numpy.savez"


def npy(raw: bytes, where: str) -> np.ndarray:
    """The array of a .npy file. Raises BadImport for objects, cut-off or surplus bytes and whatever is no array."""
    try:
        length = slice(8, 12 if raw[6:7] == b"\2" else 10)
        shape, is_fortran, dtype, begin = _header(raw[: length.stop + int.from_bytes(raw[length], "little")])
        if dtype.kind not in "iufb" or any(n < 0 for n in shape):
            raise ValueError(f"{dtype} of shape {shape} is no plain array")
        n_bytes, found = math.prod(shape) * dtype.itemsize, len(raw) - begin
        if n_bytes != found:
            raise ValueError(f"{dtype} of shape {shape} takes {n_bytes} bytes, {found} are there")
        return np.frombuffer(raw, dtype, offset=begin).reshape(shape, order="F" if is_fortran else "C")
    except (*_UNREADABLE, RecursionError, MemoryError) as error:
        raise BadImport(f"{where}: not a plain .npy array ({reason(error)}); {_REMEDY}") from None


@lru_cache(maxsize=1024)
def _header(head: bytes) -> tuple[tuple[int, ...], bool, np.dtype, int]:
    """Shape, whether in Fortran order, type, and where the numbers begin. Kept: numpy parses a header as Python, and requests of
    one length have the same."""
    stream = io.BytesIO(head)
    shape, is_fortran, dtype = _HEADERS[np.lib.format.read_magic(stream)](stream)
    return shape, is_fortran, dtype, stream.tell()


def npz(raw: bytes, path: Path, max_bytes: int) -> dict[str, np.ndarray]:
    """The arrays of a .npz file by name. Raises BadImport."""
    arrays, n_bytes = {}, 0
    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            for member in archive.infolist():
                n_bytes += member.file_size  # no more is ever unpacked of it
                within(n_bytes, max_bytes, str(path))
                if member.compress_type not in _METHODS or member.flag_bits & 1:
                    raise BadImport(f"{path}: {member.filename!r} is packed in a way numpy does not use; {_REMEDY}")
                name = member.filename.removesuffix(".npy")
                arrays[name] = npy(archive.read(member), f"{path}: {name}")
    except BadImport:
        raise
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, OSError, ValueError, OverflowError) as error:
        raise BadImport(f"{path}: not a readable .npz ({reason(error)}); {_REMEDY}") from None
    return arrays


def base64_bytes(content: str, where: str, max_bytes: int) -> bytes:
    """What base64 in a response stands for. Raises BadImport."""
    within(len(content) * 3 // 4, max_bytes, where)
    try:
        return base64.b64decode(content, validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadImport(f"{where}: not base64 ({reason(error)}); {AS_SENT}") from None


def int_lists(value: Any, depth: int, where: str) -> np.ndarray:
    """An int64 array from lists of lists, `depth` deep, of whole numbers alone. Raises BadImport."""
    flat = value
    try:
        if not isinstance(value, list):
            raise TypeError
        for _ in range(depth - 1):
            flat = list(chain.from_iterable(flat))
        if not set(map(type, flat)) <= {int}:
            raise TypeError
        array = np.array(value, np.int64)
        return array if flat else array.reshape((0,) * depth)
    except (TypeError, ValueError, OverflowError):
        raise BadImport(f"{where} is {shown(value)}, not lists of whole numbers; {AS_SENT}") from None


def is_torch(raw: bytes) -> bool:
    """Whether the bytes are a torch file: a zip, or its form before that."""
    return raw[:1] in (b"P", b"\x80")


def plain_values(raw: bytes, where: str, remedy: str) -> dict[str, Any]:
    """The dict that was saved, on the CPU. Raises BadImport for one that needs a pickle, a damaged one and what is no dict."""
    import torch

    try:
        with warnings.catch_warnings(action="ignore"):  # of other protocols, which are then refused
            found = torch.load(io.BytesIO(raw), map_location="cpu", weights_only=True)
    except Exception as error:  # of a damaged file torch raises nearly anything
        raise BadImport(f"{where}: not a torch file of plain tensors ({reason(error)}); {remedy}") from None
    if not isinstance(found, dict):
        raise BadImport(f"{where}: holds a {type(found).__name__}, not the recorder's dict; {remedy}")
    return found
