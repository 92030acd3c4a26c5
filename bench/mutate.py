"""Do the tests notice when the code is wrong? `make mutate FILES="hw/clock.py policies/lru.py"` changes one thing and asks.

Every place that an operator of cosmic-ray can change is a site; annotations and the options of compilers and dataclasses are
none. Of a file's sites a seeded sample is taken, of each site one change, drawn too. Each mutant is tried in a process of its
own, forked after the libraries are loaded, on a copy of the checkout, with the tests that mutate.json names for the file.
Kernels run as plain Python (NUMBA_DISABLE_JIT), so that nothing compiled before stands in for a mutant, and property tests draw
few examples. A mutant is killed if a test fails, if it does not import, or if it uses far more CPU time than the file itself.
docs/development.md has scores.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.lines import PRODUCT, ROOMS, ROOT

CORE = ("hw", "policies", "replay", "warehouse")
# The tests that are about a file, fast without a compiler: pytest's arguments. The longest start of a path that fits counts.
TESTS: dict[str, tuple[str, ...]] = json.loads((Path(__file__).parent / "mutate.json").read_text(encoding="utf-8"))
SWAPS = {"maximum": "minimum", "max": "min", "argmax": "argmin", "any": "all", "floor": "ceil", "union": "intersection"}
SWAPS |= {to: what for what, to in SWAPS.items()}
TIMES_CPU, LEAST_CPU_S = 6, 10
EXAMPLES = 15


@dataclass(frozen=True)
class Mutant:
    """One change of one file: where, by which operator, and the whole text with it."""

    line: int
    operator: str
    before: str
    after: str
    text: str

    def __str__(self) -> str:
        return f"line {self.line}, {self.operator}: `{self.before}` -> `{self.after}`"


def mutants(path: Path, n_sites: int, seed: int) -> tuple[int, list[Mutant]]:
    """How many sites a file has, and a mutant at each of a sample of them."""
    from cosmic_ray.ast import ast_nodes, get_ast

    source = path.read_text(encoding="utf-8")
    unseen = _never_run(ast.parse(source))
    sites: dict[tuple[tuple[int, int], tuple[int, int]], list[tuple[str, int]]] = {}
    operators = _operators()
    for name, operator in operators.items():
        positions = (span for node in ast_nodes(get_ast(source)) for span in operator.mutation_positions(node))
        for occurrence, (start, end) in enumerate(positions):
            if not any(first <= start <= last for first, last in unseen):
                sites.setdefault((start, end), []).append((name, occurrence))
    rng = random.Random(f"{seed}/{path.name}")
    made = []
    for place in sorted(rng.sample(sorted(sites), min(n_sites, len(sites)))):
        drawn = next(_changes(source, operators, rng.sample(sites[place], len(sites[place]))), None)
        if drawn is None:
            continue
        name, text = drawn
        changed = [pair for pair in zip(source.splitlines(), text.splitlines(), strict=False) if pair[0] != pair[1]]
        before, after = (side.strip() for side in (changed or [("", "")])[0])
        made.append(Mutant(place[0][0], name, before, after, text))
    return len(sites), made


def _changes(source: str, operators: dict[str, Any], choices: Sequence[tuple[str, int]]) -> Iterator[tuple[str, str]]:
    """Operators and the text they make, of those that change anything."""
    from cosmic_ray.mutating import mutate_code

    for name, occurrence in choices:
        try:
            text = mutate_code(source, operators[name], occurrence)
        except AttributeError:  # cosmic-ray 8.7 on `except (module.Error, ...)`
            continue
        if text not in (None, source):
            yield name, text


def _operators() -> dict[str, Any]:
    """cosmic-ray's, and one of ours: a name for its opposite, maximum for minimum."""
    import parso
    from cosmic_ray import plugins
    from cosmic_ray.operators.operator import Operator

    class SwapName(Operator):
        def mutation_positions(self, node):  # type: ignore[no-untyped-def]
            if node.type == "name" and node.value in SWAPS:
                yield node.start_pos, node.end_pos

        def mutate(self, node, index):  # type: ignore[no-untyped-def]
            return parso.python.tree.Name(SWAPS[node.value], node.start_pos, node.prefix)

        @classmethod
        def examples(cls):  # type: ignore[no-untyped-def]
            return ()

    kinds = {name.rpartition("/")[2]: plugins.get_operator(name) for name in plugins.operator_names()}
    chosen = {name: kind() for name, kind in kinds.items() if not kind.arguments() and not _is_identity(name)}
    return chosen | {"SwapName": SwapName()}


def _is_identity(name: str) -> bool:
    """`==` to `is` and back: of the interned texts and small numbers that are compared, the same."""
    return name.startswith("ReplaceComparisonOperator") and bool({"Is", "IsNot"} & set(name.split("_")))


def _never_run(tree: ast.Module) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Where a change changes nothing: annotations, options of the compiler, what runs as a program only."""
    nodes: list[ast.expr | ast.stmt | None] = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            nodes.append(node.returns)
            nodes += [d for d in node.decorator_list if "kernel(" in ast.unparse(d)]
        elif isinstance(node, ast.ClassDef):
            nodes += node.decorator_list
        elif isinstance(node, ast.arg | ast.AnnAssign):
            nodes.append(node.annotation)
        elif isinstance(node, ast.Assign):
            nodes.append(node if any(_makes_type(part) for part in ast.walk(node.value)) else None)
        elif isinstance(node, ast.If):
            nodes.append(node if ast.unparse(node.test) in ("TYPE_CHECKING", "__name__ == '__main__'") else None)
    spans = [((n.lineno, n.col_offset), (n.end_lineno or 0, n.end_col_offset or 0)) for n in nodes if n]
    return [((line, max(0, column - 1)), end) for (line, column), end in spans]  # with the @ of a decorator


def _makes_type(node: ast.AST) -> bool:
    """Whether it is a type of a kernel's signature (policies/kernels.py)."""
    return isinstance(node, ast.Call) and ast.unparse(node.func) in ("array", "function")


@contextmanager
def _copy() -> Iterator[Path]:
    """A copy of the checkout to break, so that the checkout itself stays whole; its rooms are importable from where it lies."""
    with tempfile.TemporaryDirectory(prefix="tokentape-mutate-") as folder:
        place = Path(folder) / "checkout"
        for name in (*PRODUCT, "tests", "pyproject.toml"):
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, place / name, ignore=shutil.ignore_patterns("__pycache__", "model"))
            else:
                shutil.copy(source, place / name)
        for name in ROOMS:
            (place / "tokentape" / name).symlink_to(place / name)
        yield place


class _Fewer:
    """Of a property test EXAMPLES examples, always the same; that one fails is enough, the smallest is not looked for."""

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        from hypothesis import Phase, settings

        for item in items:
            own = getattr(item.obj, "_hypothesis_internal_use_settings", None)
            if own is not None:
                fewer = settings(
                    own,
                    max_examples=min(own.max_examples, EXAMPLES),
                    phases=(Phase.explicit, Phase.generate),
                    database=None,
                    derandomize=True,
                )
                getattr(item.obj, "__func__", item.obj)._hypothesis_internal_use_settings = fewer


def _try(place: Path, tests: Sequence[str], cpu_s: float, log: Path) -> tuple[int, float]:
    """Runs tests in a fork of this process; their exit status (or minus the signal that ended them) and CPU seconds."""
    pid = os.fork()
    if not pid:
        resource.setrlimit(resource.RLIMIT_CPU, (int(cpu_s) + 1, int(cpu_s) + 2))
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(out, 1)
        os.dup2(out, 2)
        os.chdir(place)
        sys.path.insert(0, str(place))
        os.environ["PYTHONPATH"] = str(place)  # for what the tests start
        code = 70
        try:
            import pytest

            code = int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *tests], [_Fewer()]))
        finally:
            sys.stdout.flush()
            os._exit(code)
    _, status, used = os.wait4(pid, 0)
    return os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime


def _tests_of(file: str) -> tuple[str, ...]:
    fitting = [start for start in TESTS if file.startswith(start)]
    if not fitting:
        raise SystemExit(f"{file}: bench/mutate.json names no tests for it")
    return tuple(TESTS[max(fitting, key=len)])


def _score(place: Path, file: str, n_sites: int, seed: int) -> dict[str, object]:
    tests, log, target = _tests_of(file), place.parent / "log", place / file
    sys.dont_write_bytecode = False
    code, cpu_s = _try(place, tests, 600, log)
    sys.dont_write_bytecode = True  # what the mutants' runs read is what the run before wrote, but for the file itself
    if code:
        raise SystemExit(f"{file}: its tests fail without any mutant:\n{log.read_text()[-3000:]}")
    n_all, chosen = mutants(ROOT / file, n_sites, seed)
    whole, survivors, begin = target.read_text(encoding="utf-8"), [], time.monotonic()
    try:
        for mutant in chosen:
            for stale in (target.parent / "__pycache__").glob(f"{target.stem}.*"):
                stale.unlink()
            target.write_text(mutant.text, encoding="utf-8")
            code, _ = _try(place, tests, max(LEAST_CPU_S, TIMES_CPU * cpu_s), log)
            if code == 5:
                raise SystemExit(f"{file}: {' '.join(tests)} chooses no test")
            print("." if code else "S", end="", file=sys.stderr, flush=True)
            if code == 0:
                survivors.append(str(mutant))
                print(f"{file} {mutant}", flush=True)
    finally:
        target.write_text(whole, encoding="utf-8")
    killed = len(chosen) - len(survivors)
    took_s = time.monotonic() - begin
    print(
        f"{file}: {killed} of {len(chosen)} killed ({killed / max(1, len(chosen)):.0%}), {n_all} sites, {took_s:.0f} s",
        flush=True,
    )
    return {"file": file, "sites": n_all, "mutants": len(chosen), "killed": killed, "survivors": survivors}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.mutate", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("files", nargs="+", help=f"files of {', '.join(CORE)}; a folder stands for those in it")
    parser.add_argument("--sites", type=int, default=30, help="how many sites of a file are tried")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    places = [ROOT / name for name in asked.files]
    found = [path for place in places for path in (sorted(place.rglob("*.py")) if place.is_dir() else [place])]
    os.environ |= {"NUMBA_DISABLE_JIT": "1", "OMP_NUM_THREADS": "1"}
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    # Once, for all mutants; nothing of ours, or a mutant would not be imported.
    import duckdb  # noqa: F401
    import hypothesis  # noqa: F401
    import numba  # noqa: F401
    import polars  # noqa: F401
    import pyarrow.parquet  # noqa: F401
    import pydantic  # noqa: F401
    import pytest  # noqa: F401

    with _copy() as place:
        scores = [_score(place, path.relative_to(ROOT).as_posix(), asked.sites, asked.seed) for path in found]
    print(json.dumps([score for score in scores if score["mutants"]]))


if __name__ == "__main__":
    main()
