"""Kernels: functions that numba compiles at their first call and keeps on disk by all that they are made of.

Naming a kernel or a signature imports nothing, so whatever is refused before it computes is refused without numba, which takes
half a second to import. numba itself keeps machine code by the file that a function is written in, and goes on using it after a
function or a constant that it takes from another file has changed. Here the name of a file of machine code is a digest of the
kernel's code, of that of every kernel it calls, and of the constants that they read.
"""

import contextlib
import functools
import gc
import hashlib
import logging
import os
import threading
from collections.abc import Callable, Iterator
from inspect import ismethod
from itertools import chain
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

# numba colours every candidate that does not fit as it looks for one that does: a tenth of a compile's time, for no reader.
os.environ.setdefault("NUMBA_DISABLE_ERROR_MESSAGE_HIGHLIGHTING", "1")
KEPT = 2  # machine code of a kernel as it is and as it was before: two branches of a checkout
SAID_AFTER_S = 2.0  # of compiling
SIGNATURE = "signature"
OF_NUMBA = frozenset({"_numba_type_", "py_func", "targetoptions"})  # what it asks of a kernel that another one names
WITHIN = "within-"  # use of a kernel by others: without what Python calls it by, a seventh of a compile


class Type:
    """A type of numba, or a signature, by its name and what it is made of: `int64`, `array(int64, 2)`, `void(int64, float64)`."""

    def __init__(self, name: str, of: tuple[Any, ...] = ()) -> None:
        self.name, self.of = name, of

    def __call__(self, *of: Any) -> Any:
        """The signature of a function of these types that returns this one; of a number, the number as this type."""
        return Type(SIGNATURE, (self, *of)) if any(isinstance(part, Type) for part in of) else getattr(np, self.name)(*of)

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(map(repr, self.of))})" if self.of else self.name

    @property
    def of_numba(self) -> Any:
        from numba import types

        of = [part.of_numba if isinstance(part, Type) else part for part in self.of]
        if self.name == "NamedTuple":
            return types.NamedTuple(of[2:], of[0])  # type: ignore[no-untyped-call]
        if self.name == SIGNATURE:
            return of[0](*of[1:])
        if self.name == "Tuple":
            return types.Tuple(of)  # type: ignore[no-untyped-call]
        return getattr(types, self.name)(*of) if of else getattr(types, self.name)

    @property
    def _numba_type_(self) -> Any:
        """What numba takes a conversion in a kernel for, such as `uint64(1)`."""
        from numba import types

        return types.NumberClass(self.of_numba)


boolean, void, none = Type("boolean"), Type("void"), Type("none")
int8, int16, int32, int64 = Type("int8"), Type("int16"), Type("int32"), Type("int64")
uint8, uint16, uint32, uint64 = Type("uint8"), Type("uint16"), Type("uint32"), Type("uint64")
float32, float64 = Type("float32"), Type("float64")


def array(of: Type, n_dims: int, layout: str = "C", readonly: bool = False) -> Type:
    """An array; layout "A": of any strides. readonly: also one that must not be written, as Arrow hands them over."""
    return Type("Array", (of, n_dims, layout, readonly))


I16, I32, I64, U8, U16, U32, U64 = (array(of, 1) for of in (int16, int32, int64, uint8, uint16, uint32, uint64))
F32, F64, F32_2D, F64_2D = (array(of, n_dims) for n_dims in (1, 2) for of in (float32, float64))
I32_2D, I64_2D, U8_2D = (array(of, 2) for of in (int32, int64, uint8))
I16_3D, I32_3D, U8_3D, F32_3D, F64_3D = (array(of, 3) for of in (int16, int32, uint8, float32, float64))


def function(signature: Type) -> Type:
    """A compiled function handed to a kernel: whoever hands it over decides which."""
    return Type("FunctionType", (signature,))


OF_TABLE = void(F64_2D)  # what policies/machine_code.py makes


def tuple_of(*of: Type) -> Type:
    return Type("Tuple", of)


def scalar_of(hint: Any) -> type[np.generic] | None:
    """The scalar of an annotation NDArray[scalar], None of any other. From 2.5 on numpy's NDArray is an alias, no ndarray."""
    inner = get_args(hint)[1] if get_origin(hint) is np.ndarray else hint if get_origin(hint) is NDArray else None
    return get_args(inner)[0] if inner is not None else None


def record_of(of: Any) -> Type:
    """A NamedTuple of numbers and of arrays of one dimension, as its annotations say."""
    numbers = {bool: boolean, int: int64, float: float64}
    hints = get_type_hints(of).values()
    parts = (numbers.get(hint) or array(Type(np.dtype(scalar_of(hint) or hint).name), 1) for hint in hints)
    return Type("NamedTuple", (of, of._fields, *parts))


def zeros_of(of: Type, *sizes: int) -> Any:
    """An array of this type, or a tuple of them: of so many zeros each, without entries where no sizes are told."""
    if of.name == "NamedTuple":
        return of.of[0](*map(zeros_of, of.of[2:]))
    if of.name == "Tuple":
        return tuple(zeros_of(part, *sizes[i : i + 1]) for i, part in enumerate(of.of))
    return np.zeros(sizes or (0,) * of.of[1], of.of[0].name)


class Kernel:
    """A function that is compiled, or read from disk, when it is first called or a kernel that calls it is compiled.

    Where other kernels name it, numba finds what it asks of a dispatcher. Threads may share it. Raises RuntimeError at the first
    call where no folder for machine code can be written.
    """

    def __init__(self, written: Callable[..., Any], signature: Type | str | None, options: dict[str, Any]) -> None:
        functools.update_wrapper(self, written)
        self._written, self._signature, self._options = written, signature, options
        self.name = self.__name__  # what numba asks of all that a kernel names, in branches too that it then leaves out
        self._compiled: dict[str, Any] = {}

    def __call__(self, *arguments: Any) -> Any:
        return self.compiled(*(each.compiled if isinstance(each, Kernel) else each for each in arguments))

    def __getattr__(self, name: str) -> Any:
        if name not in OF_NUMBA:  # what else looks at a kernel (copying, pytest) must not compile it
            raise AttributeError(name)
        return getattr(self._of(WITHIN), name)

    def __reduce__(self) -> str:
        return self._written.__qualname__

    @property
    def compiled(self) -> Any:
        """numba's dispatcher; the function as it is written where NUMBA_DISABLE_JIT is set."""
        return self._of("")

    def _of(self, use: str) -> Any:
        return self._compiled.get(use) or self._compile(use)

    def _compile(self, use: str) -> Any:
        from numba import njit
        from numba.core.compiler_lock import global_compiler_lock

        with global_compiler_lock, _compiling():
            if use not in self._compiled:
                bare: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True} if use == WITHIN else {}
                made = njit(nogil=True, **bare, **self._options)(self._written)
                if self._signature is not None and made is not self._written:
                    made._cache, once = _cache(self._written, use, digest(self))
                    with once():
                        made.compile(self._signature.of_numba if isinstance(self._signature, Type) else self._signature)
                    made.disable_compile()
                self._compiled[use] = made
            return self._compiled[use]


_AT_WORK: list[threading.Timer] = []  # of the compile that is under way, which those that it needs are part of


@contextlib.contextmanager
def _compiling() -> Iterator[None]:
    """Whoever waits is told for what. Garbage stays: looking for it takes a tenth of a compile, whose objects live to its end."""
    if _AT_WORK:
        yield
        return
    said = "compiling kernels, which the next run finds"
    _AT_WORK.append(threading.Timer(SAID_AFTER_S, logging.getLogger("tokentape").info, [said]))
    _AT_WORK[0].daemon, was_on = True, gc.isenabled()
    _AT_WORK[0].start()
    gc.disable()
    try:
        yield
    finally:
        _AT_WORK.pop().cancel()
        if was_on:
            gc.enable()


def kernel(signature: Type | str | None = None, allocates: bool = True, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Makes a function a kernel of one signature, without the interpreter's lock.

    Without a signature, and with inline="always", it is one for other kernels. allocates: it may make arrays, and so counts
    references to every array that it views or hands on, atomically: where events are short that takes most of their time.
    options: further ones of numba.njit.
    """
    return lambda written: Kernel(written, signature, options | {"_nrt": allocates})


@kernel(inline="always")
def total(values):  # type: ignore[no-untyped-def]
    """The sum of a row of whole numbers. Where a kernel calls numba's, its machine code imports scipy when it is read."""
    found = 0
    for i in range(values.shape[0]):
        found += values[i]
    return found


@functools.lru_cache(maxsize=64)
def dispatcher_of(written: Any, signature: Type) -> Any:
    """A function as compiled code; one of a person's own that is plain Python is compiled once, here, and raises IndexError where
    it leaves an array. Raises ValueError, in one line, if it does not compile, or draws what no seed decides."""
    from numba import njit

    if isinstance(written, Kernel):
        return written.compiled
    if hasattr(written, "signatures"):
        return written
    name = getattr(written, "__qualname__", written)
    try:
        made = njit(signature.of_numba, nogil=True, boundscheck=True)(written)
    except Exception as error:  # numba raises many kinds; a first line that names a step of its own is followed by the reason
        lines = [line.strip() for line in f"{error}\n{type(error).__name__}".splitlines() if line.strip()]
        lines = [line for line in lines if not line.startswith("Failed in nopython")]
        why = "put @staticmethod above it" if ismethod(written) else " ".join(lines[: 1 + lines[0].endswith(":")])
        raise ValueError(f"{name} does not compile with numba: {why}") from error
    if hasattr(made, "inspect_llvm") and any("_random_state" in code for code in made.inspect_llvm().values()):
        raise ValueError(f"{name} draws at random, so that no two runs are alike; compute what it draws from its arguments")
    return made


def numbers_of(policy: Any) -> Any:
    """A policy's parameters, f64 (n,), a copy. Raises ValueError where they are no row of numbers."""
    params = np.array(policy.params(), float, order="C")
    if params.ndim != 1:
        raise ValueError(f"{type(policy).__name__}.params has shape {params.shape}; it must be a row of numbers, such as (2,)")
    return params


def digest(kernel: Kernel) -> str:
    """Of what the machine code of a kernel follows from, but for the versions of numba and Python and the processor."""
    reached: dict[int, Kernel] = {}
    parts = list[Any]()
    for each in _reached(kernel, reached):
        parts.append((each.__qualname__, each._signature, sorted(each._options.items())))
        for code in _codes(each._written.__code__):
            constants = [part for part in code.co_consts if not isinstance(part, CodeType)]
            parts.append((code.co_code, code.co_varnames, code.co_names, constants))
        parts += ((name, _constant(value)) for name, value in _names(each).items())
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _reached(kernel: Kernel, reached: dict[int, Kernel]) -> Iterator[Kernel]:
    """The kernel and those that it calls, directly or not, each once."""
    if id(kernel) not in reached:
        reached[id(kernel)] = kernel
        yield kernel
        for value in _names(kernel).values():
            if isinstance(value, Kernel):
                yield from _reached(value, reached)


def _constant(value: Any) -> Any:
    """A value that numba compiles in; of what it knows itself, such as functions of numpy, the name."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, (bool, int, float, complex, str, bytes, tuple, np.generic, Type)) or value is None:
        return value
    if isinstance(value, type):
        return value.__qualname__, getattr(value, "_fields", ())  # of a NamedTuple, in the order in which a kernel finds them
    return getattr(value, "__qualname__", type(value).__qualname__)


def _names(kernel: Kernel) -> dict[str, Any]:
    """What a kernel reads of its module and, through their names, of our other modules."""
    space = kernel._written.__globals__
    asked = sorted(set(chain.from_iterable(code.co_names for code in _codes(kernel._written.__code__))))
    found = {name: space[name] for name in asked if name in space}
    for of, module in list(found.items()):
        if isinstance(module, ModuleType) and module.__name__.partition(".")[0] not in ("numpy", "math"):
            found |= {f"{of}.{name}": getattr(module, name) for name in asked if hasattr(module, name)}
    return found


def _codes(code: CodeType) -> Iterator[CodeType]:
    """A function's code and that of the functions inside it."""
    yield code
    for part in code.co_consts:
        if isinstance(part, CodeType):
            yield from _codes(part)


def _cache(
    written: Callable[..., Any], use: str, digest: str
) -> tuple[Any, Callable[[], contextlib.AbstractContextManager[None]]]:
    """numba's cache, in files of this digest, and what to compile in: one process does, others wait; drops older digests."""
    from numba.core.caching import FunctionCache, IndexDataCacheFile
    from numba.core.runtime.nrt import rtsys
    from numba.experimental import function_type  # noqa: F401  # what is there may be handed functions

    class Cache(FunctionCache):
        """Only what compiles needs all that numba knows, half a second to import; it is left out where machine code is read."""

        def load_overload(self, sig: Any, target_context: Any) -> Any:
            rtsys.initialize(target_context)
            with self._guard_against_spurious_io_errors():
                return self._load_overload(sig, target_context)  # type: ignore[no-untyped-call]

    cache = Cache(written)  # type: ignore[no-untyped-call]
    name, _, rest = (use + cache._impl.filename_base).rpartition("-")
    version = rest.partition(".")[2]
    cache._cache_file = IndexDataCacheFile(  # type: ignore[no-untyped-call]
        cache.cache_path, f"{name}-{digest}.{version}", digest
    )

    @contextlib.contextmanager
    def once() -> Iterator[None]:
        index, lock = (Path(cache.cache_path, f"{name}-{digest}.{end}") for end in (f"{version}.nbi", "lock"))
        if index.exists():
            yield
            return
        with lock.open("w") as held:
            with contextlib.suppress(ImportError):  # on Windows both compile
                import fcntl

                fcntl.flock(held, fcntl.LOCK_EX)
            yield
        with contextlib.suppress(OSError):  # another process sweeps too
            lock.unlink()
            found = sorted(index.parent.glob(f"{name}-*.{version}.nbi"), key=lambda path: path.stat().st_mtime_ns)
            for path in chain.from_iterable(index.parent.glob(f"{old.stem}.*") for old in found[:-KEPT]):
                path.unlink()

    return cache, once
