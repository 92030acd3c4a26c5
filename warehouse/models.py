"""The models that ship as geometry: the config.json keys that matter, with the published parameter counts beside our own.

A user's own config.json goes the same way; how a model is printed is in warehouse.model_tables.
"""

import difflib
import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from tokentape.warehouse.config_fields import doubts, text_config
from tokentape.warehouse.geometry import Geometry
from tokentape.warehouse.model_config import from_config
from tokentape.warehouse.model_sizes import total_params

FOLDER = Path(__file__).parent / "models"


class Published(BaseModel, frozen=True, extra="forbid"):
    """Parameter counts as the publisher rounds them, and where; active_params: None where a model is dense."""

    total_params: int
    active_params: int | None
    source: str


class Model(BaseModel, frozen=True, extra="forbid"):
    """A named geometry, where its config comes from, and what its publisher counts (None for a config of the user's own).

    note: what to know before trusting the counts; of a user's own config, steps and serving say it too. kept_16_bit: kinds of
    weights (hw/work.py) that its quantised checkpoints leave as they are. tokens_of_text: what its tokenizer makes of scientific
    text, over what Qwen3's does (docs/serving.md). same_shape: other checkpoints of the hub that have this
    geometry. config: of the user's own.
    """

    name: str
    geometry: Geometry
    source: str
    published: Published | None
    note: str = ""
    kept_16_bit: tuple[str, ...] = ("router", "head")
    tokens_of_text: float = 1.0
    same_shape: tuple[str, ...] = ()
    config: dict[str, Any] = {}

    def formats(self, weight_format: str) -> dict[str, str]:
        """Of weights but routed experts by kind (hw/work.py), where the checkpoint is quantised to this format."""
        kinds = ("proj", "router", "shared", "dense_ffn", "head")
        return {kind: weight_format for kind in kinds if kind not in self.kept_16_bit}

    @property
    def doubts(self) -> tuple[str, ...]:
        """The note on a config of the user's own, if there is one."""
        return (self.note,) if self.note and not self.published else ()

    @property
    def deviation_frac(self) -> float | None:
        """Our total over the published one, less 1."""
        return total_params(self.geometry) / self.published.total_params - 1 if self.published else None


def names() -> tuple[str, ...]:
    """Names of the shipped models, in order."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.json")))


def shipped() -> tuple[Model, ...]:
    """All shipped models, by name."""
    return tuple(load(name) for name in names())


def config_path(name_or_path: str) -> Path:
    """The file of a shipped model, by name in any case, or the path as it is. Raises ValueError for what is neither."""
    if name_or_path.lower() in names():
        return FOLDER / f"{name_or_path.lower()}.json"
    path = Path(name_or_path)
    if path.suffix != ".json" and not path.exists():
        near = difflib.get_close_matches(name_or_path.lower(), names(), 1)
        starts = [name for name in names() if name.startswith(name_or_path.lower())]
        known = ", ".join(starts or near or names())
        raise ValueError(f"no model {name_or_path!r} ships; give {known}, or the path of a config.json")
    return path / "config.json" if path.is_dir() else path


def load(name_or_path: str) -> Model:
    """A shipped model by name (any case), or the geometry of a config.json by path.

    Raises ValueError in one line for an unknown name, a missing or unreadable file and a config that lacks a field.
    """
    path = config_path(name_or_path)
    if path.parent == FOLDER:
        entry = json.loads(path.read_text(encoding="utf-8"))
        geometry = from_config(entry.pop("config"))
        return Model(name=path.stem, geometry=geometry, **entry)
    return _read(path)


def like(hub_name: str) -> str:
    """The shipped model that a hub's name is a variant of: the longest that its last part begins with.

    Raises ValueError where none is.
    """
    last = hub_name.rsplit("/", 1)[-1].lower().removeprefix("meta-")
    called = {name: model.name for model in shipped() for name in (model.name, *model.same_shape)}
    found = [name for name in called if last == name or last.startswith(f"{name}-")]
    if not found:
        raise ValueError(f"no shipped model is like {hub_name!r}; give its config.json with --model")
    return called[max(found, key=len)]


def _read(path: Path) -> Model:
    try:
        config = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: cannot be read as JSON ({error}); give a model's config.json") from None
    if not isinstance(config, dict):
        raise ValueError(f"{path}: holds no JSON object; give a model's config.json")
    try:
        geometry = from_config(config)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "config"
        raise ValueError(f"{path}: {field}: {first['msg']}; give a model's config.json") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    except (TypeError, AttributeError, LookupError, ArithmeticError) as error:
        raise ValueError(f"{path}: a field has the wrong type ({error}); give a model's config.json") from None
    name = path.resolve().parent.name if path.name == "config.json" else path.stem
    return Model(name=name, geometry=geometry, source=str(path), published=None, note=doubts(config), config=text_config(config))
