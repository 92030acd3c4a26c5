"""The model's config.json, or a shipped model's file, beside a trace that does not say what the model is."""

import math
from pathlib import Path

from tokentape.capture.importers.limits import MAX_EXPERTS, MAX_LAYERS, U32, BadImport, json_file, read, reason, shown, words
from tokentape.warehouse.geometry import Geometry
from tokentape.warehouse.model_config import from_config, text_config

_WANTED = "give the model's Hugging Face config.json"
_MAX_BYTES = 1 << 24
_MOST = {
    "num_hidden_layers": MAX_LAYERS,
    **dict.fromkeys(("num_experts", "n_routed_experts", "num_local_experts"), MAX_EXPERTS),
}


def moe_config(path: Path) -> tuple[bytes, str, Geometry]:
    """The file's bytes, the model's name, its geometry. Raises BadImport if it is no config of a model with experts, OSError."""
    raw = read(path, _MAX_BYTES)
    config = json_file(raw, path, _WANTED)
    shipped = config.get("config") if isinstance(config, dict) else None
    config = shipped or config
    try:
        for field, value in text_config(config).items():  # geometry is made of lists as long as they say
            number = value if type(value) in (int, float) else 0
            if not math.isfinite(number) or abs(number) > _MOST.get(field, U32):
                raise ValueError(f"{field} is {shown(value)}, more than any model has")
        geometry = from_config(config)
    except (ValueError, AttributeError, TypeError, LookupError, ArithmeticError) as error:
        raise BadImport(f"{path}: {reason(error)}; {_WANTED}") from error
    if not geometry.moe_layers:
        raise BadImport(f"{path}: a model without routed experts; give the config.json of the model that was served")
    name = path.stem if shipped else config.get("_name_or_path") or geometry.architecture
    return raw, words(name, f"{path}: _name_or_path"), geometry
