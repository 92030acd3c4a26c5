"""What of the code a result's key is of: an engine's own modules and whatever they reach, and nothing else of the project."""

import ast
import shutil
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pytest

from tokentape.flows import grid, sources, system_runs
from tokentape.flows.serving import points as serving
from tokentape.flows.serving import setup
from tokentape.flows.systems.cxl_ndp import live as cxl_ndp
from tokentape.flows.systems.elmoe3d import live as elmoe3d
from tokentape.flows.systems.kelle import live as kelle
from tokentape.flows.systems.layered_prefill import points as layered_prefill
from tokentape.flows.systems.slicemoe import live as slicemoe
from tokentape.flows.systems.slicemoe import sweeps
from tokentape.hw import calibrate, spec
from tokentape.policies import registry
from tokentape.policies.own_modules import imported_names
from tokentape.policies.residency import CACHES

ENGINES: dict[str, tuple[str, ...]] = {
    "experts": (grid.ENGINE,),
    "sweeps": sweeps.ENGINE,
    "serving": serving.ENGINE,
    "rounds": elmoe3d.REPLAYED,
    "drafts": elmoe3d.MEASURED,
    "cxl_ndp inside": (cxl_ndp.ENGINE,),
    **{f"sliced inside: {what}": engine for what, engine in slicemoe.ENGINES.items() if what != "schemes"},
    **{f"kv: {table}": engine for table, engine in kelle.ENGINES.items()},
}
INSIDE = {name for name, engine in ENGINES.items() if any("capture" in module for module in engine)}
LOOP = {"serving", "sweeps"}
LIVE = {*LOOP, *INSIDE}
# A file, and the engines whose results are made again after a comment in it.
GROUPS: dict[str, set[str]] = {"none": set(), "LOOP": LOOP, "LIVE": LIVE, "INSIDE": INSIDE, "ENGINES": set(ENGINES)}
TOUCHED = {
    file: {engine for name in names.split(", ") for engine in GROUPS.get(name, {name})}
    for file, _, names in (line.partition(" | ") for line in (Path(__file__).parent / "touched.txt").read_text().splitlines())
}
# The modules that decide a flow's rows and the engines that its keys name.
CALLERS = [
    ([grid], [grid.ENGINE]),
    ([system_runs], [system_runs.ENGINE, *system_runs.LOSSES]),
    ([sweeps], sweeps.ENGINE),
    ([layered_prefill, serving, setup], serving.ENGINE),
    ([elmoe3d], [*elmoe3d.REPLAYED, *elmoe3d.MEASURED]),
    ([cxl_ndp], [cxl_ndp.ENGINE]),
    ([slicemoe], [module for engine in slicemoe.ENGINES.values() for module in engine]),
    ([kelle], [module for engine in kelle.ENGINES.values() for module in engine]),
]
# What flows import beside engines: names and text into policies, machines and sizes, which are in the key by their parameters,
# hashes and bytes; what is recorded first, which is in it by its sums; and constants, in it by their files.
IN_THE_KEY = (
    "tokentape.policies.resolve", "tokentape.hw.spec", "tokentape.hw.calibrate", "tokentape.capture.run",
    "tokentape.capture.synthetic", "tokentape.replay.capacity", "tokentape.policies.names",
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def parsed_once() -> Iterator[None]:
    """What a file of these bytes imports is looked for once, not for every engine that reaches it."""
    look = sources._imported
    found = lru_cache(None)(lambda path, source: look(path))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "_imported", lambda path: found(path, path.read_bytes()))
        yield


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources of the rooms, to be written to."""
    root = tmp_path_factory.mktemp("tree")
    for room in (*sources.ROOMS, "warehouse"):
        shutil.copytree(
            sources.ROOT / room, root / room, ignore=shutil.ignore_patterns("*.safetensors", "__pycache__", "*.parquet")
        )
    return root


def keys(root: Path) -> dict[str, str]:
    sources.sha256.cache_clear()
    return {name: sources.sha256(*engine, root=root) for name, engine in ENGINES.items()}


@pytest.fixture(scope="module")
def before(tree: Path) -> dict[str, str]:
    found = keys(tree)
    assert found == keys(sources.ROOT)
    return found


@pytest.mark.parametrize("file", TOUCHED)
def test_a_comment_makes_the_results_again_that_the_file_decides_and_no_others(
    tree: Path, before: dict[str, str], file: str
) -> None:
    text = (tree / file).read_bytes()
    (tree / file).write_bytes(text + b"\n# a comment\n")
    after = keys(tree)
    (tree / file).write_bytes(text)
    assert {name for name in ENGINES if before[name] != after[name]} == TOUCHED[file]


def test_a_policy_of_the_project_is_in_the_key_of_its_own_results_alone(tree: Path) -> None:
    def of_policies() -> dict[str, str]:
        sources.sha256.cache_clear()
        return {name: sources.sha256(grid.ENGINE, also=registry.reached("residency", name), root=tree) for name in CACHES}

    before, file = of_policies(), tree / "policies" / "lru.py"
    text = file.read_bytes()
    file.write_bytes(text + b"\n# a comment\n")
    after = of_policies()
    file.write_bytes(text)
    assert {name for name in CACHES if before[name] != after[name]} == {"lru", "fifo"}


def test_the_code_of_losses_is_in_the_key_of_runs_that_go_by_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "sha256", lambda *engine, also, fits: also)
    for losses, named in ((None, set[str]()), (0.5, {*system_runs.LOSSES})):
        found = system_runs._sources(system_runs.system_of("sarathi"), spec.load("h100"), system_runs.Setting(losses=losses))
        assert {*found} & {*system_runs.LOSSES} == named


def test_a_policy_of_ones_own_brings_what_it_imports_of_the_project(tmp_path: Path) -> None:
    (tmp_path / "helper_of_mine.py").write_text("from tokentape.policies.lfu import LFU\n")
    mine = tmp_path / "mine.py"
    mine.write_text("import numpy\nimport helper_of_mine\nfrom tokentape.policies.lru import LRU\n")
    named = registry.reached("residency", f"{mine}:Mine")
    assert {"tokentape.policies.lru", "tokentape.policies.lfu"} <= set(sources.closure(also=named))
    assert "tokentape.policies.belady" not in sources.closure(also=named)


def test_constants_are_those_of_the_device_of_the_machine(tmp_path: Path) -> None:
    assert calibrate.files_of(spec.load("phone-lpddr5x-ufs4")) == ()
    of_gpu = next(path for path in calibrate.files_of(spec.load("h100")) if path.stem.endswith("_bfloat16"))
    assert calibrate.load(of_gpu).items() <= calibrate.fits_of(spec.load("h100"), calibrate.shipped()).items()
    point = setup.Point(scheduler="orca", profile="layered_prefill")
    assert [path.name for path in setup.fits_of(point)] == ["serving-h100x2.toml"]
    for change in ({"expert_times": "measured"}, {"profile": "physical"}):
        assert of_gpu in setup.fits_of(point.model_copy(update=change))
    assert Path("my.toml") in setup.fits_of(point.model_copy(update={"profile": "my.toml"}))
    mine = tmp_path / "mine.toml"
    mine.write_text("x = 1\n")
    before = sources.sha256(*serving.ENGINE, fits=(mine,))
    assert before != sources.sha256(*serving.ENGINE)
    mine.write_text("x = 2\n")
    sources.sha256.cache_clear()
    assert sources.sha256(*serving.ENGINE, fits=(mine,)) != before


def test_imports_in_functions_and_of_modules_out_of_packages_are_followed(tmp_path: Path) -> None:
    files = {
        "replay/__init__.py": "from tokentape.replay import unused\n",
        "replay/unused.py": "",
        "replay/engine.py": "from tokentape.hw import one\nimport tokentape.hw.two.inner as inner\n",
        "hw/__init__.py": "",
        "hw/one.py": "def f():\n    try:\n        from tokentape.policies import LRU\n    finally:\n        pass\n",
        "hw/two/__init__.py": "",
        "hw/two/inner.py": "if TYPE_CHECKING:\n    from tokentape.hw import typed\nelse:\n    from tokentape.hw import run\n",
        "hw/typed.py": "",
        "hw/run.py": "import numpy\nfrom tokentape.flows import grid\nfrom tokentape.warehouse import tape, geometry\n",
        "policies/__init__.py": "from tokentape.policies.lru import LRU\n",
        "policies/lru.py": "match 1:\n    case 1:\n        import tokentape.hw.one\n",
        "warehouse/geometry.py": "",
        "warehouse/tape.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    reached = sources.closure("tokentape.replay.engine", root=tmp_path)
    assert set(reached) == {
        "tokentape.replay.engine", "tokentape.hw.one", "tokentape.hw.two.inner", "tokentape.hw.run",
        "tokentape.policies", "tokentape.policies.lru", "tokentape.warehouse.geometry",
    }  # fmt: skip
    assert reached["tokentape.policies"] == tmp_path / "policies" / "__init__.py"
    with pytest.raises(ValueError, match=r"no module tokentape\.replay\.motor of an engine"):
        sources.closure("tokentape.replay.motor", root=tmp_path)


@pytest.mark.parametrize(("modules", "engine"), CALLERS, ids=lambda part: getattr(part[0], "__name__", ""))
def test_whatever_a_flow_takes_from_the_engines_rooms_is_of_its_engine(modules: list[object], engine: list[str]) -> None:
    reached = sources.closure(*engine)
    for module in modules:
        file = Path(str(module.__file__))  # type: ignore[attr-defined]
        taken = sources.closure(also=tuple(name for name in imported_names(file.read_bytes(), str(file)) if _counts(name)))
        assert not {name for name in taken if _counts(name)} - set(reached), file


def test_statements_that_hold_an_import_name_what_whole_modules_do() -> None:
    for file in (file for room in (*sources.ROOMS, "warehouse") for file in (sources.ROOT / room).rglob("*.py")):
        assert sorted(sources._imported(file)) == sorted(imported_names(file.read_bytes(), str(file))), file


def _counts(name: str) -> bool:
    room = name.split(".")[1] if name.startswith("tokentape.") else ""
    return room in sources.ROOMS and not name.startswith(IN_THE_KEY)


def reached_by_any() -> dict[str, Path]:
    return {name: path for engine in ENGINES.values() for name, path in sources.closure(*engine).items()}


def test_imports_by_name_and_packages_that_do_nothing() -> None:
    """What the registry so imports is in the key by `reached`."""
    found = {name for name, path in reached_by_any().items() if _imports_by_name(path)}
    assert found == set()
    assert _imports_by_name(Path(registry.__file__))
    assert registry.__name__ == sources.BY_NAME
    # Why a package does not count where a module inside it is imported.
    packages = [path for room in sources.ROOMS for path in (sources.ROOT / room).rglob("__init__.py")]
    statements = [node for path in packages for node in ast.parse(path.read_bytes()).body]
    done = {ast.unparse(n.value.func) for n in statements if isinstance(n, ast.Expr) and isinstance(n.value, ast.Call)}
    assert done == {"os.environ.setdefault"}  # telemetry is off


def _imports_by_name(path: Path) -> bool:
    named = {getattr(node, "attr", None) or getattr(node, "id", None) for node in ast.walk(ast.parse(path.read_bytes()))}
    return bool(named & {"import_module", "__import__", "exec", "spec_from_file_location", "find_spec", "run_path"})


def test_files_beside_the_sources_are_in_the_key() -> None:
    """Read by a module itself (READS), handed over as `fits`, or a machine's own or a system's, which are in the key."""
    beside = {name.removeprefix("tokentape.") for name, path in reached_by_any().items() if "__file__" in path.read_text()}
    assert beside == {
        "hw.dram",
        "hw.fit_files",
        "hw.profile",
        "hw.spec",
        "capture.checkpoint",
        "capture.embedded.texts",
        "capture.families",
        "capture.orderings",
        "policies.slots",
        "replay.serving.engine_logs",
        "warehouse.config_fields",
    }
    for name, pattern in sources.READS.items():
        assert name in reached_by_any()
        assert list(sources.ROOT.glob(pattern)), pattern
