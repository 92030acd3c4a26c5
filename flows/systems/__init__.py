"""Studies that ship: those of published systems, one settings file each and the module that runs it, and grids of replays."""

import tomllib
from pathlib import Path

from tokentape.policies.names import unknown

PUBLISHED = ("cxl_ndp", "elmoe3d", "kelle", "layered_prefill", "offloaders", "slicemoe")
SYSTEMS = {name: f"tokentape.flows.systems.{name}.study" for name in PUBLISHED}  # the module that runs each
GRIDS = Path(__file__).parents[1] / "studies"
IN_MODEL = frozenset({"cxl_ndp", "elmoe3d", "kelle", "slicemoe"})  # they also measure inside a live model, for minutes


def grids() -> list[str]:
    """Names of the grids of replays that ship."""
    return sorted(path.stem for path in GRIDS.glob("*.toml"))


def system_of(name_or_path: str) -> str:
    """The published system whose study, or a copy of whose study, this is; empty for a grid of replays.

    Reads the head of a file and imports nothing that computes. Raises ValueError for a file whose system there is not.
    """
    if not name_or_path.endswith(".toml"):
        return name_or_path if name_or_path in SYSTEMS else ""
    try:
        fields = tomllib.loads(Path(name_or_path).read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return ""  # its reader says what is wrong
    system = fields.get("system", "")
    if system and system not in SYSTEMS:
        raise ValueError(f"{name_or_path}: {unknown('system', str(system), SYSTEMS)}")
    return str(system)


def questions() -> dict[str, str]:
    """The question of every study that ships, by name; reads the heads of their files and imports nothing that computes."""
    files = {name: GRIDS / f"{name}.toml" for name in grids()}
    files |= {name: Path(__file__).parent / name / "study.toml" for name in SYSTEMS}
    heads = {name: path.read_text(encoding="utf-8").partition("\n[")[0] for name, path in files.items()}
    return {name: str(tomllib.loads(head)["question"]) for name, head in heads.items()}
