"""BigMoeOnEdge `route_trace v1` -> tape. The engine streams experts from a phone's flash and logs which it found resident.

    # route_trace v1
    # model=... arch=... n_layer=48 n_expert=128 n_expert_used=6
    # layer=0 expert_bytes=3059712 dense_bytes=11953152          one line per layer; expert_bytes=0: a dense layer
    turn,phase,step,layer,slot,expert,weight,residency,expert_bytes

One line per routed expert: phase 0 is prefill (layer-major), 1 decode (token-major); step is the token's position; slot its rank
by weight. residency is 1 where the expert was resident (0 on all prefill rows); expert_bytes are the bytes read, 0 on a hit or a
repeat: it follows from the others and is not kept. Today's files have a column more, dropped. Experts that were dropped or read
ahead (residency 2) are refused. Top-k is the header's n_expert_used, never the model card's: runs override it.
"""

import io
import itertools
import re
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from tokentape.capture.importers import limits
from tokentape.capture.importers.checks import known_top_k
from tokentape.capture.importers.limits import DEFAULT_MAX_BYTES, BadImport
from tokentape.capture.importers.model_config import moe_config
from tokentape.capture.importers.rows import RoutedRows, Source, as_executed, no_widths, write_import
from tokentape.warehouse.geometry import Geometry
from tokentape.warehouse.tape import Store

FORMAT = "# route_trace v1"
COLUMNS: dict[str, Any] = dict.fromkeys(("turn", "phase", "step", "layer", "slot", "expert"), pl.Int64)
COLUMNS |= {"weight": pl.Float64, "residency": pl.Int64, "expert_bytes": pl.Int64}
_MODEL = re.compile(
    r"# model=(?P<model>.*) arch=(?P<arch>\S+) n_layer=(?P<n_layer>[0-9]{1,9}) n_expert=(?P<n_expert>[0-9]{1,9}) "
    r"n_expert_used=(?P<top_k>[0-9]{1,9})$"
)
_LAYER = re.compile(r"# layer=([0-9]{1,9}) expert_bytes=([0-9]{1,18}) dense_bytes=([0-9]{1,18})$")


class _Header(NamedTuple):
    model: str
    geometry: Geometry
    n_lines: int  # before the first row


def import_bigmoe(path: str | Path, store: Store, max_bytes: int = DEFAULT_MAX_BYTES, model: Path | None = None) -> str:
    """Imports one file and returns the trace id; importing it again changes nothing. model: config of what the header lacks.

    One request per turn. Its prefill is one pass (more where the engine split the prompt: a new pass starts where the layer falls
    back), each decode step is one. Token ids are not recorded: null. Raises BadImport, OSError.
    """
    path = Path(path)
    raw = limits.read(path, max_bytes)
    header = _header(raw, path)
    frame = _rows(raw, header, path)
    content: tuple[bytes, ...] = (raw,)
    geometry, top_k, settings = header.geometry, known_top_k(header.model), {"importer": "bigmoe"}
    if model is not None:
        config_raw, name, of_model = moe_config(model)
        content, top_k, settings = (raw, config_raw), of_model.top_k, settings | {"config": name}
        try:
            geometry = geometry.completed(of_model, str(model))
        except ValueError as error:
            raise BadImport(f"{path}: {error}") from error
    source = Source(
        path=path,
        content=content,
        model_id=header.model,
        geometry=geometry,
        model_top_k=top_k,
        settings=settings | {"format": FORMAT.removeprefix("# ")},
    )
    return write_import(store, source, _routed(frame, header, path))


def _header(raw: bytes, path: Path) -> _Header:
    """The comment lines and the column line. Raises BadImport."""
    if not raw:
        raise BadImport(f"{path}: the file is empty; record or download it again")
    text = io.TextIOWrapper(io.BytesIO(raw), encoding="utf-8-sig", errors="replace")
    if text.readline().strip() != FORMAT:
        raise BadImport(f"{path}: line 1 is not {FORMAT!r}; give a BigMoeOnEdge route trace")
    comments = [line.strip() for line in itertools.takewhile(lambda line: line.startswith("#"), text)]
    n_lines = len(comments) + 2
    columns = raw.split(b"\n", n_lines)[n_lines - 1 : n_lines]
    if b"".join(columns).strip().decode(errors="replace").removesuffix(",dropped") != ",".join(COLUMNS):
        raise BadImport(f"{path}: line {n_lines} must be {','.join(COLUMNS)}; the file is of another version or cut off")
    model = next(filter(None, map(_MODEL.match, comments)), None)
    if model is None:
        raise BadImport(f"{path}: no line '# model=... arch=... n_layer=... n_expert=... n_expert_used=...'; download it again")
    layers = [tuple(map(int, m.groups())) for m in map(_LAYER.match, comments) if m]
    n_layers, n_experts, top_k = (int(model[name]) for name in ("n_layer", "n_expert", "top_k"))
    if n_layers > limits.MAX_LAYERS or n_experts > limits.MAX_EXPERTS:
        most = f"no model has more than {limits.MAX_LAYERS} and {limits.MAX_EXPERTS}"
        raise BadImport(f"{path}: n_layer={n_layers} n_expert={n_experts}: {most}")
    if [layer for layer, _, _ in layers] != list(range(n_layers)):
        raise BadImport(f"{path}: the header lists {len(layers)} layers, n_layer is {n_layers}; download the file again")
    if any(n_bytes > limits.MAX_LAYER_BYTES for _, *sizes in layers for n_bytes in sizes):
        raise BadImport(f"{path}: the header has a layer of more than {limits.MAX_LAYER_BYTES} bytes; download the file again")
    if not 0 < top_k <= n_experts:
        raise BadImport(f"{path}: n_expert_used={top_k} must lie in 1..n_expert ({n_experts}); download the file again")
    name = re.split(r"[\\/]", model["model"])[-1].removesuffix(".gguf")
    name, arch = limits.words(name, f"{path}: model"), limits.words(model["arch"], f"{path}: arch")
    return _Header(name, _geometry(arch, n_experts, top_k, layers), n_lines)


def _geometry(arch: str, n_experts: int, top_k: int, layers: list[tuple[int, ...]]) -> Geometry:
    """Sizes as recorded; widths are 0: the header has none. A dense layer's bytes count with the next MoE layer, or the last."""
    moe = [layer for layer, expert_bytes, _ in layers if expert_bytes]
    dense = [0] * len(moe)
    for layer, _, dense_bytes in layers:
        if moe:
            dense[min(int(np.searchsorted(moe, layer)), len(moe) - 1)] += dense_bytes
    return no_widths(
        arch,
        len(layers),
        moe_layers=tuple(moe),
        n_experts=n_experts,
        top_k=top_k,
        recorded_expert_bytes=tuple(layers[layer][1] for layer in moe),
        recorded_dense_bytes=tuple(dense),
    )


def _rows(raw: bytes, header: _Header, path: Path) -> pl.DataFrame:
    """The CSV part, one row per routed expert. Raises BadImport naming the line of the first row that cannot be read."""
    *_, names, body = raw.split(b"\n", header.n_lines)
    columns = COLUMNS | ({"dropped": pl.Int64} if names.strip().endswith(b",dropped") else {})
    if not body.strip():
        raise BadImport(f"{path}: no rows after the header; record the trace again")
    if not body.endswith(b"\n"):
        raise BadImport(f"{path}: the last line is cut off (it has no line end); record or download the file again")
    with suppress(pl.exceptions.PolarsError, pl.exceptions.PanicException):
        frame = pl.read_csv(io.BytesIO(body), has_header=False, schema=columns, quote_char=None)
        if not sum(frame.null_count().row(0)):
            return frame
    raise BadImport(f"{path}: {_first_bad_line(body, header.n_lines, columns)}; the trace is damaged: record or fetch it again")


def _first_bad_line(body: bytes, n_before: int, columns: dict[str, Any]) -> str:
    for number, line in enumerate(body.decode(errors="replace").splitlines(), n_before + 1):
        fields = line.split(",")
        if len(fields) != len(columns):
            return f"line {number} has {len(fields)} fields, {len(columns)} are expected"
        for (name, kind), field in zip(columns.items(), fields, strict=True):
            try:
                float(field) if kind == pl.Float64 else int(field)
            except ValueError:
                return f"line {number}: {name} is {limits.shown(field)}, not a number"
    return "a number is out of range"


def _routed(frame: pl.DataFrame, header: _Header, path: Path) -> RoutedRows:
    """One row per (token, layer) from one per routed expert. Raises BadImport if a token lacks slots or names a foreign layer."""
    k = header.geometry.top_k
    turn, phase, step, layer, slot = (frame[name].to_numpy() for name in ("turn", "phase", "step", "layer", "slot"))
    remedy = "the trace is damaged: record or download it again"

    def line(at: int) -> int:
        return int(at) + header.n_lines + 1

    guided = (frame["residency"] == 2) | (frame.get_column("dropped", default=pl.Series([0])) != 0)
    for at in guided.arg_true().head(1):
        raise BadImport(f"{path}: line {line(at)}: prefetched or dropped; record without --prefetch and --drop-cold-experts")
    keys = np.column_stack((turn, phase, step, layer))
    wrong = slot != np.arange(len(frame)) % k
    wrong[1:] |= (slot[1:] > 0) & (keys[1:] != keys[:-1]).any(axis=1)
    if wrong.any():
        at = int(np.argmax(wrong))
        raise BadImport(f"{path}: line {line(at)}: slot {slot[at]}, expected slot {at % k} of {k} of one token; {remedy}")
    if len(frame) % k:
        raise BadImport(f"{path}: the last token has {len(frame) % k} of {k} experts; {remedy}")
    moe = np.isin(layer, header.geometry.moe_layers)
    bad = ~moe | (turn < 0) | (step < 0) | ~np.isin(phase, (0, 1)) | ~np.isin(frame["residency"].to_numpy(), (0, 1))
    if bad.any():
        at = int(np.argmax(bad))
        found = ", ".join(f"{name} {frame[name][at]}" for name in ("turn", "phase", "step", "layer", "residency"))
        raise BadImport(f"{path}: line {line(at)}: {found}: a value is outside what the header or the format allows; {remedy}")
    turn, phase, step, layer = keys[::k].T
    request_id = np.unique(turn, return_inverse=True)[1]
    return RoutedRows(
        request_id=request_id,
        position=step,
        layer=layer,
        pass_id=as_executed(request_id, phase == 1, layer, step),
        is_decode=phase == 1,
        expert_ids=frame["expert"].to_numpy().reshape(-1, k),
        gate_weights=frame["weight"].to_numpy().reshape(-1, k),
        residency=frame["residency"].to_numpy().reshape(-1, k),
    )
