"""A function of numbers as machine code in tenths of a second: generated source, straight to LLVM.

numba infers the types of every expression first; that takes seconds for an iteration of the serving engine, and every machine,
system and profile has an iteration of its own. Here a number is a float, but for those that `int` makes and loops count by.

A source is one function of a table: assignments to names and to the table's entries, `for i in range(n)`, `continue`, `if`, and
expressions of numbers with max, min, int, numpy's functions of numbers and names that it is told: constants, kernels, and
functions that numpy runs on arrays. These run once, on the code's own numbers in place of arrays, so that what they decide by
constants is decided when the code is made.
"""

from __future__ import annotations

import ast
import contextlib
import ctypes
import functools
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import llvmlite.binding
import numba
import numpy as np
from llvmlite import ir
from numba.core.caching import FunctionCache
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target
from numba.core.types import WrapperAddressProtocol

from tokentape.policies.kernels import OF_TABLE, Kernel

_FLOAT, _INT, _BOOL = ir.DoubleType(), ir.IntType(64), ir.IntType(1)
_ENTRY, _OF_ARRAY = "machine_code", "_of_array"  # a function, and what numba calls it by
KEPT = 1024  # functions on disk, some tens of kB each: those used last
# What numpy's functions of numbers are in code: of integers, of truth values, of floats, as comparisons, as functions.
_OF_INTS = {np.add: "add", np.subtract: "sub", np.multiply: "mul", np.bitwise_and: "and_"}
_OF_BOOLS = {np.bitwise_and: "and_", np.bitwise_or: "or_", np.invert: "not_"}
_OF_FLOATS = {np.add: "fadd", np.subtract: "fsub", np.multiply: "fmul", np.true_divide: "fdiv", np.negative: "fneg"}
_COMPARED = {np.equal: "==", np.not_equal: "!=", np.less: "<", np.less_equal: "<=", np.greater: ">", np.greater_equal: ">="}
_CALLED = {np.ceil: "ceil", np.floor: "floor", np.sqrt: "sqrt", np.log2: "log2", np.power: "pow"}


class Number(np.lib.mixins.NDArrayOperatorsMixin):
    """A float, integer or truth value of the code, which numpy's functions of numbers take."""

    def __init__(self, builder: ir.IRBuilder, value: Any) -> None:
        self.builder, self.value = builder, value

    def __bool__(self) -> bool:
        raise TypeError("what the code's own numbers decide is decided when it runs: write np.where")

    def as_float(self) -> Any:
        if self.value.type is _FLOAT:
            return self.value
        convert = self.builder.uitofp if self.value.type is _BOOL else self.builder.sitofp
        return convert(self.value, _FLOAT)

    def as_int(self) -> Any:
        return self.value if self.value.type is _INT else self.builder.fptosi(self.as_float(), _INT)

    def as_bool(self) -> Any:
        return self.value if self.value.type is _BOOL else self.builder.fcmp_unordered("!=", self.as_float(), _FLOAT(0.0))

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any) -> Number:
        builder, given = self.builder, [number_of(self.builder, value) for value in inputs]
        if ufunc in _OF_INTS and all(number.value.type is _INT for number in given):
            return Number(builder, getattr(builder, _OF_INTS[ufunc])(*(number.value for number in given)))
        if ufunc in _OF_BOOLS:
            return Number(builder, getattr(builder, _OF_BOOLS[ufunc])(*(number.as_bool() for number in given)))
        floats = [number.as_float() for number in given]
        if ufunc in _OF_FLOATS:
            return Number(builder, getattr(builder, _OF_FLOATS[ufunc])(*floats))
        if ufunc in _COMPARED:
            compare = builder.fcmp_unordered if ufunc is np.not_equal else builder.fcmp_ordered
            return Number(builder, compare(_COMPARED[ufunc], *floats))
        if ufunc in (np.maximum, np.minimum):
            is_first = builder.fcmp_ordered(">" if ufunc is np.maximum else "<", *floats)
            return Number(builder, builder.select(is_first, *floats))
        if ufunc not in _CALLED:
            raise TypeError(f"numpy.{ufunc.__name__} is no function of numbers here")
        kind = ir.FunctionType(_FLOAT, [_FLOAT] * len(floats))
        return Number(builder, builder.call(builder.module.declare_intrinsic(f"llvm.{_CALLED[ufunc]}", [_FLOAT], kind), floats))

    def __array_function__(self, function: Any, types: Any, inputs: Sequence[Any], named: Any) -> Number:
        if function is not np.where:
            raise TypeError(f"numpy.{function.__name__} is no function of numbers here; numpy.where is")
        is_first, first, second = (number_of(self.builder, value) for value in inputs)
        return Number(self.builder, self.builder.select(is_first.as_bool(), first.as_float(), second.as_float()))


def number_of(builder: ir.IRBuilder, value: Any) -> Number:
    """A number of the code, or a constant in it."""
    if isinstance(value, Number):
        return value
    if isinstance(value, bool | np.bool_):
        return Number(builder, _BOOL(int(value)))
    return Number(builder, _INT(value) if isinstance(value, int) else _FLOAT(float(value)))


class _Table:
    """t of a source."""

    def __init__(self, builder: ir.IRBuilder, data: Any, *shape: Any) -> None:
        self.builder, self.data, self.shape = builder, data, tuple(Number(builder, n) for n in shape)

    def at(self, place: tuple[Any, Any]) -> Any:
        row, column = (number_of(self.builder, of) for of in place)
        return self.builder.gep(self.data, [(row * self.shape[1] + column).as_int()], inbounds=True)

    def __getitem__(self, place: tuple[Any, Any]) -> Number:
        return Number(self.builder, self.builder.load(self.at(place)))

    def __setitem__(self, place: tuple[Any, Any], value: Any) -> None:
        self.builder.store(number_of(self.builder, value).as_float(), self.at(place))


class _Writer(ast.NodeTransformer):
    """One function's code. names: what its source is told. An expression is run by Python, on numbers of the code, after what is
    in it that only they decide: conditions, and their `and` and `or`."""

    def __init__(self, function: ir.Function, names: Mapping[str, Any]) -> None:
        self.start = ir.IRBuilder(function.append_basic_block())  # where names have their places
        self.builder = ir.IRBuilder(function.append_basic_block())
        self.table = _Table(self.builder, *function.args)
        told = {name: functools.partial(self._call, of) if isinstance(of, Kernel) else of for name, of in names.items()}
        self.space = {
            "np": np,
            "t": self.table,
            "int": lambda value: Number(self.builder, value.as_int()),
            "max": lambda *values: functools.reduce(np.maximum, values),
            "min": lambda *values: functools.reduce(np.minimum, values),
            **told,
        }
        self.variables: dict[str, Any] = {}
        self.ends_of_loops: list[Any] = []

    def write(self, statements: Sequence[ast.stmt]) -> None:
        for statement in statements:
            getattr(self, f"_{type(statement).__name__.lower()}")(statement)

    # ------------------------------------------------------------------------------------------------ statements

    def _pass(self, statement: ast.Pass) -> None:
        pass

    def _continue(self, statement: ast.Continue) -> None:
        self.builder.branch(self.ends_of_loops[-1])

    def _assign(self, statement: ast.Assign) -> None:
        value = self.value(statement.value)
        for target in statement.targets:
            many = zip(target.elts, value, strict=True) if isinstance(target, ast.Tuple) else [(target, value)]
            for one, of in many:
                self._put(one, of)

    def _augassign(self, statement: ast.AugAssign) -> None:
        read = ast.parse(ast.unparse(statement.target), mode="eval").body
        self._put(statement.target, self.value(ast.BinOp(read, statement.op, statement.value)))

    def _put(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, ast.Subscript):
            self.table[self.value(target.slice)] = value
            return
        name, number = target.id, number_of(self.builder, value)  # type: ignore[attr-defined]
        if name not in self.variables:
            self.variables[name] = self.start.alloca(_INT if number.value.type is _INT else _FLOAT)
        at = self.variables[name]
        if at.allocated_type is _INT and number.value.type is not _INT:
            raise TypeError(f"{name} is an integer; write int(...)")
        self.builder.store(number.value if at.allocated_type is _INT else number.as_float(), at)

    def _if(self, statement: ast.If) -> None:
        self._either(statement.test, lambda: self.write(statement.body), lambda: self.write(statement.orelse))

    def _either(self, test: ast.expr, *sides: Callable[[], Any]) -> None:
        with self.builder.if_else(number_of(self.builder, self.value(test)).as_bool()) as blocks:
            for block, write in zip(blocks, sides, strict=True):
                with block:
                    write()

    def _for(self, statement: ast.For) -> None:
        (bound,) = statement.iter.args  # type: ignore[attr-defined]
        n = number_of(self.builder, self.value(bound)).as_int()
        head, body, end, after = (self.builder.append_basic_block() for _ in range(4))
        self._put(statement.target, 0)
        at = self.variables[statement.target.id]  # type: ignore[attr-defined]
        self.builder.branch(head)
        self.builder.position_at_end(head)
        self.builder.cbranch(self.builder.icmp_signed("<", self.builder.load(at), n), body, after)
        self.builder.position_at_end(body)
        self.ends_of_loops.append(end)
        self.write(statement.body)
        self.ends_of_loops.pop()
        self.builder.branch(end)
        self.builder.position_at_end(end)
        self.builder.store(self.builder.add(self.builder.load(at), _INT(1)), at)
        self.builder.branch(head)
        self.builder.position_at_end(after)

    # ------------------------------------------------------------------------------------------------ expressions

    def value(self, node: ast.expr) -> Any:
        """What an expression is: a number of the code, a constant, or a tuple of them."""
        flat = ast.fix_missing_locations(ast.Expression(self.visit(node)))
        asked = {of.id for of in ast.walk(flat) if isinstance(of, ast.Name)} & self.variables.keys()
        here = {name: Number(self.builder, self.builder.load(self.variables[name])) for name in sorted(asked)}
        return eval(compile(flat, "machine code", "eval"), self.space | here)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        how = ast.BitAnd() if isinstance(node.op, ast.And) else ast.BitOr()
        first: ast.expr
        first, *others = map(self.visit, node.values)
        return functools.reduce(lambda a, b: ast.BinOp(a, how, b), others, first)

    def visit_IfExp(self, node: ast.IfExp) -> ast.Name:
        name = ast.Name(f"either_{len(self.variables)}", ast.Store())
        self._put(name, 0.0)
        self._either(node.test, lambda: self._put(name, self.value(node.body)), lambda: self._put(name, self.value(node.orelse)))
        return ast.Name(name.id, ast.Load())

    def _call(self, called: Kernel, *arguments: Any) -> Number:
        """A call of machine code that numba made, which takes tables by value."""
        [made] = called.compiled.overloads.values()
        name, module = f"{called.__module__}.{called.__qualname__}", self.builder.module  # its place differs from run to run
        llvmlite.binding.add_symbol(name, made.library.get_pointer_to_function(made.fndesc.llvm_cfunc_wrapper_name))
        given: list[Any] = []
        for of, kind in zip(arguments, made.signature.args, strict=True):
            if of is self.table:
                given.append(_array_of(self.table))
            else:
                number = number_of(self.builder, of)
                given.append(number.as_float() if str(kind) == "float64" else number.as_int())
        of_code = ir.FunctionType(_FLOAT, [value.type for value in given])
        return Number(self.builder, self.builder.call(module.globals.get(name) or ir.Function(module, of_code, name), given))


# An array of numba's of two dimensions: owner and parent, entries and bytes of each, the entries, shape and strides.
_POINTER = ir.IntType(8).as_pointer()
_PAIR = ir.ArrayType(_INT, 2)
_ARRAY = ir.LiteralStructType([_POINTER, _POINTER, _INT, _INT, _FLOAT.as_pointer(), _PAIR, _PAIR])


def _array_of(table: _Table) -> Any:
    """The table as an argument of numba's functions."""
    builder, data, (n_rows, n_columns) = table.builder, table.data, (number.value for number in table.shape)
    size, row_bytes = builder.mul(n_rows, n_columns), builder.mul(n_columns, _INT(8))
    pairs = [
        builder.insert_value(builder.insert_value(_PAIR(ir.Undefined), first, 0), second, 1)
        for first, second in ((n_rows, n_columns), (row_bytes, _INT(8)))
    ]
    made = _ARRAY(ir.Undefined)
    for i, value in enumerate((_POINTER(None), _POINTER(None), size, _INT(8), data, *pairs)):
        made = builder.insert_value(made, value, i)
    return made


class MachineCode(WrapperAddressProtocol):
    """A function of a table, void(array(float64, 2)), that numba's code and Python call."""

    def __init__(self, library: Any, entry: str) -> None:
        self._library = library
        self._address = library.get_pointer_to_function(entry + _OF_ARRAY)
        of_c = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
        self._entry = of_c(library.get_pointer_to_function(entry))

    def __call__(self, table: Any) -> None:
        self._entry(table.ctypes.data, *table.shape)

    def __wrapper_address__(self) -> int:
        return self._address  # type: ignore[no-any-return]

    def signature(self) -> Any:
        return OF_TABLE.of_numba


@functools.cache
def machine_code(source: str, **names: Any) -> MachineCode:
    """Of a source, and what the names in it are."""
    [written] = ast.parse(source).body
    assert isinstance(written, ast.FunctionDef)
    codegen, (of_numba,) = cpu_target.target_context.codegen(), OF_TABLE.of_numba.args
    assert cpu_target.target_context.get_value_type(of_numba) == _ARRAY, "this numba hands arrays over in another form"
    module = codegen.create_library(_ENTRY).create_ir_module(_ENTRY)
    entry = ir.Function(module, ir.FunctionType(ir.VoidType(), [_FLOAT.as_pointer(), _INT, _INT]), _ENTRY)
    writer = _Writer(entry, names)
    body = writer.builder.block
    writer.write(written.body)
    writer.builder.ret_void()
    writer.start.branch(body)
    wrapper = ir.Function(module, ir.FunctionType(_POINTER, [_ARRAY]), _ENTRY + _OF_ARRAY)
    builder = ir.IRBuilder(wrapper.append_basic_block())
    data, shape = (builder.extract_value(wrapper.args[0], i) for i in (4, 5))
    builder.call(entry, [data, *(builder.extract_value(shape, i) for i in (0, 1))])
    builder.ret(_POINTER(None))
    return _compiled(codegen, str(module))


@functools.cache
def _compiled(codegen: Any, written: str) -> MachineCode:
    """Of LLVM's text: found on disk, beside the machine code of kernels, or compiled and kept there. The code is named by what it
    is made of: all functions of a process share one space of names."""
    made_of = repr((written, codegen.magic_tuple(), llvmlite.__version__, numba.__version__))
    name = f"{_ENTRY}_{hashlib.sha256(made_of.encode()).hexdigest()[:24]}"
    cache = FunctionCache(number_of)  # type: ignore[no-untyped-call]
    path = Path(cache.cache_path, name)
    with global_compiler_lock:
        kept = b""
        with contextlib.suppress(OSError):  # where it is not there yet, or swept by another process
            kept = path.read_bytes()
            os.utime(path)
        digest, parts = kept[:32], kept[32:]
        if parts and hashlib.sha256(parts).digest() == digest:
            n = int.from_bytes(parts[:8], "little")
            library = codegen.unserialize_library((name, "object", (parts[8 : 8 + n], parts[8 + n :])))
            return MachineCode(library, name)
        library = codegen.create_library(name)
        library.enable_object_caching()
        library.add_llvm_module(llvmlite.binding.parse_assembly(written.replace(f'@"{_ENTRY}', f'@"{name}')))
        library.finalize()
        _, _, (code, names) = library.serialize_using_object_code()
        parts = len(code).to_bytes(8, "little") + code + names
        aside = path.with_suffix(f".{os.getpid()}")
        with contextlib.suppress(OSError):  # what is not kept is made again: of a full disk, or where another process sweeps too
            cache._impl.locator.ensure_cache_path()
            aside.write_bytes(hashlib.sha256(parts).digest() + parts)
            aside.replace(path)
            for old in sorted(path.parent.glob(f"{_ENTRY}_*"), key=os.path.getmtime)[:-KEPT]:
                old.unlink()
    return MachineCode(library, name)
