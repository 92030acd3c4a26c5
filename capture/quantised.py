"""Weights that are not plain floats: GGUF files, FP8 checkpoints and the like, and what is quantised as it is loaded.

transformers unpacks and quantises; here is what it is asked for, and what the manifest says it did. GGUF weights are always
unpacked: the kernels that compute on packed ones are code from the hub. At load torchao quantises linear layers, on any device;
experts that a family keeps in one stacked tensor it leaves as they are, which is told.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections import Counter
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoConfig, FineGrainedFP8Config, GgufConfig, PreTrainedModel, TorchAoConfig
from transformers.utils.quantization_config import Mxfp4Config

from tokentape.capture.blocks import find_blocks
from tokentape.policies.names import unknown

if TYPE_CHECKING:
    from tokentape.capture.models import Source

WIDTHS = ("int8", "int4", "fp8")
DEQUANTISED: dict[str, Any] = {"fp8": FineGrainedFP8Config, "mxfp4": Mxfp4Config, "gguf": GgufConfig}
LOG = logging.getLogger("tokentape")


def read_gguf(path: Path) -> tuple[Any, dict[str, Any]]:
    """Config and, for the manifest, file, mix of types (such as MOSTLY_Q4_K_M) and weights per type. Raises what `gguf` does."""
    from gguf import GGUFReader, LlamaFileType

    reader, stored = GGUFReader(path), Counter[str]()
    for tensor in reader.tensors:
        stored[tensor.tensor_type.name] += int(tensor.n_elements)
    config = AutoConfig.from_pretrained(path.parent, gguf_file=str(path), trust_remote_code=False)
    fields = {name.partition(".")[2]: field for name, field in reader.fields.items()}
    for name, attribute in (("expert", "moe"), ("expert_shared", "shared_expert")):  # transformers 5.23 leaves both at a default
        if (field := fields.get(f"{name}_feed_forward_length")) and hasattr(config, f"{attribute}_intermediate_size"):
            setattr(config, f"{attribute}_intermediate_size", int(field.contents()))
    file_type = LlamaFileType(fields["file_type"].contents()).name if "file_type" in fields else None
    return config, {"file": path.name, "file_type": file_type, "stored_parameters": dict(stored)}


def refuse_absent(what: str, *packages: str) -> None:
    """Raises ValueError with the command that installs what is not there."""
    if absent := [name for name in packages if not _is_installed(name)]:
        raise ValueError(f"{what} needs {' and '.join(absent)}: pip install {' '.join(absent)}, or 'tokentape[quantised]'")


def _is_installed(package: str) -> bool:
    try:
        return bool(version(package))
    except PackageNotFoundError:
        return False


def method_of(source: Source) -> str | None:
    """How a checkpoint's weights are quantised: gguf, fp8, bitsandbytes, ...; None for plain ones."""
    if not (told := getattr(source.config, "quantization_config", None)):
        return "gguf" if source.gguf else None
    return str((told if isinstance(told, dict) else told.to_dict()).get("quant_method", "bitsandbytes"))  # whose first named none


def options(source: Source, asked: str | None, place: torch.device | None) -> dict[str, Any]:
    """What from_pretrained is given. place: None under a device map. FP8 has no CPU kernels: there it is unpacked.

    Raises ValueError for a quantisation that is unknown, cannot be had of this checkpoint, or lacks a package.
    """
    method, is_on_cpu, given = method_of(source), place is not None and place.type == "cpu", dict[str, Any]()
    if asked not in (None, *WIDTHS, "none"):
        raise unknown("quantization", str(asked), (*WIDTHS, "none"))
    if asked == "none" and method not in DEQUANTISED:
        raise ValueError(f"--quantization none: weights of {source.model_id} are {method or 'plain'} and stay so; leave it out")
    if asked in WIDTHS and method:
        raise ValueError(f"--quantization {asked}: {source.model_id} is quantised already ({method}); give none, or a plain one")
    if method in DEQUANTISED:
        refuse_absent(f"a checkpoint of {method}", "accelerate")
    if asked in WIDTHS:
        refuse_absent(f"--quantization {asked}", "torchao", "accelerate")
        given["quantization_config"] = TorchAoConfig(_of_torchao(str(asked)))
    elif method and (asked == "none" or method == "gguf" or (method == "fp8" and is_on_cpu)):
        given["quantization_config"] = DEQUANTISED[method](dequantize=True)
    if (method or asked) and place is not None and not is_on_cpu:
        given["device_map"] = {"": place}  # quantised weights do not move once they are loaded
    return given


def _of_torchao(width: str) -> Any:
    from torchao.quantization import Float8WeightOnlyConfig, Int8WeightOnlyConfig, IntxWeightOnlyConfig, PerGroup

    if width == "int4":  # a byte per weight, a scale per 32 inputs; on every device, as the packed forms are not
        return IntxWeightOnlyConfig(weight_dtype=getattr(torch, width), granularity=PerGroup(32))
    return Int8WeightOnlyConfig() if width == "int8" else Float8WeightOnlyConfig()


def told(source: Source, asked: str | None, model: PreTrainedModel) -> dict[str, Any]:
    """For the manifest, and one line of it to stderr; empty for a plain checkpoint loaded as it is."""
    method, dtype = method_of(source), str(model.dtype).removeprefix("torch.")
    notes: dict[str, Any] = {"checkpoint_quantization": method} if method else {}
    if method and not getattr(model, "is_quantized", False):
        notes |= {"is_dequantised": True, "dtype": dtype}
        LOG.warning("%s: its %s weights are unpacked as they are loaded, to %s", source.model_id, method, dtype)
    if source.gguf:
        with open(source.at["gguf_file"], "rb") as file:
            notes |= source.gguf | {"sha256": hashlib.file_digest(file, "sha256").hexdigest()}
    return notes | _quantised(source, asked, model) if asked in WIDTHS else notes


def _quantised(source: Source, width: str, model: PreTrainedModel) -> dict[str, Any]:
    """Which modules are at the width and how many parameters at which; the routed experts' also by themselves."""
    experts = {id(p) for block in find_blocks(model).values() for p in block.experts.parameters()}
    every, routed, modules = Counter[str](), Counter[str](), set[str]()
    for name, parameter in model.named_parameters():
        kind = str(parameter.dtype).removeprefix("torch.")
        if type(parameter.data) is not torch.Tensor:
            kind = width
            modules.add(re.sub(r"\.\d+\.", ".*.", name.removesuffix(".weight")))
        every[kind] += parameter.numel()
        routed[kind] += parameter.numel() if id(parameter) in experts else 0
    if not modules:
        raise ValueError(f"--quantization {width}: {source.model_id} has no linear layer that torchao quantises; leave it out")
    counts = [f"{n:,}" for n in (every[width], every.total(), routed[width], routed.total())]
    LOG.warning("%s: %s of %s parameters are %s; of routed experts %s of %s", source.model_id, *counts[:2], width, *counts[2:])
    library = {"quantization": width, "library": f"torchao {version('torchao')}", "modules": sorted(modules)}
    return library | {"parameters": dict(every), "expert_parameters": dict(+routed)}
