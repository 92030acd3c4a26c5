"""Router logits from published counts per expert: tokens are drawn independently, by how often each expert was used.

    logits[t,l,e] = log max(counts[domain, l, e], 1e-30 of the layer's largest) + Gumbel

A request takes the next domain in turn. Nothing tells two requests of a domain apart: the prompt foretells popularity alone.
"""

import gzip
import json
import math
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokentape.capture.importers.arrays import MAGIC, is_torch, npy, plain_values
from tokentape.capture.synthetic.context import gumbel
from tokentape.capture.synthetic.generator import stream
from tokentape.warehouse.geometry import Geometry

FORMULA = "log max(counts[domain,l,e], 1e-30 of the largest) + Gumbel; requests take the domains in turn"
LEAST = 1e-30  # of a layer's largest count: never drawn, and no infinity among a tape's scores
_TABLED = 4  # first word of a random stream's key
_WRONG = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, EOFError, RuntimeError, OSError, zlib.error)


@dataclass(frozen=True)
class Tabled:
    """counts[domain][row][expert]: uses of an expert; rows are spread evenly over `layers`, the model's MoE layers (assumed)."""

    counts: tuple[tuple[tuple[float, ...], ...], ...]
    layers: tuple[int, ...]

    def logits(self, seed: int, request: int, layer: int, n_prompt: int, n_decoded: int, n_experts: int) -> NDArray[np.float32]:
        """As RouterLogits. An expert that was never used is never drawn."""
        rows = self.counts[request % len(self.counts)]
        row = np.array(rows[self.layers.index(layer) * len(rows) // len(self.layers)])
        popularity: NDArray[np.float32] = np.log(np.maximum(row, LEAST * row.max())).astype(np.float32)
        return gumbel(stream(seed, _TABLED, request, layer), n_prompt + n_decoded, n_experts) + popularity


def load(source: str, geometry: Geometry) -> Tabled:
    """From a JSON file, plain or .gz: {domain: [[count of every expert] of every row]}. `FILE#a/b` takes what lies under a, b.

    Or one domain of loads, as expert-parallel load balancers take them: [layers][experts], or [steps][layers][experts], which are
    added up, of MoE layers or all; as JSON, alone or under `logical_count` (SGLang's --init-expert-location), as .npy, or as the
    .pt that SGLang's recorder dumps in mode stat (sgl-project/sglang, python/sglang/srt/eplb/expert_distribution.py,
    _StatAccumulator.dump), of which nothing but tensors is read.
    Raises ValueError naming the file, and the domain and row, for anything else and for rows of another number of experts or with
    fewer than k in use; OSError for a file that cannot be read.
    """
    layers, n_experts, top_k = geometry.moe_layers, geometry.n_experts, geometry.top_k
    path, _, inside = source.partition("#")
    raw = Path(path).read_bytes()
    try:
        found: Any = _read(path, raw)
        for key in filter(None, inside.split("/")):
            found = found[key]
        found = found.get("logical_count", found) if isinstance(found, dict) else found
        if not isinstance(found, dict):
            loads = np.asarray(found, np.float64)
            loads = loads.sum(axis=0) if loads.ndim == 3 else loads
            found = {"loads": loads[list(layers)] if len(loads) == geometry.n_layers else loads}
        table = {domain: [[float(n) for n in row] for row in rows] for domain, rows in found.items()}
    except _WRONG as error:
        where = f" at {inside!r}" if inside else ""
        raise ValueError(f"{path}: no counts{where} ({error}); give FILE#KEY/KEY of {{domain: [[counts] of a layer]}}") from error
    if not table or not all(table.values()):
        raise ValueError(f"{path}: no domain with rows of counts; give FILE#KEY/KEY of {{domain: [[counts] of a layer]}}")
    for domain, rows in table.items():
        for i, row in enumerate(rows):
            if len(row) != n_experts or sum(n > 0 for n in row) < top_k or not all(0 <= n < math.inf for n in row):
                raise ValueError(
                    f"{path}: {domain}, row {i}: {len(row)} counts, {sum(0 < n < math.inf for n in row)} of them "
                    f"numbers above 0, or one below; the model has {n_experts} experts and routes to {top_k}"
                )
    return Tabled(tuple(tuple(map(tuple, rows)) for rows in table.values()), layers)


def _read(path: str, raw: bytes) -> Any:
    """JSON, an array of .npy, or what a torch file holds of plain tensors."""
    if raw.startswith(MAGIC):
        return npy(raw, path)
    if is_torch(raw):
        return plain_values(raw, path, "give SGLang's dump of mode stat")
    return json.loads(gzip.decompress(raw) if path.endswith(".gz") else raw)
