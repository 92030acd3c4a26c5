"""The work of a transformer's steps as rows: projections, attention, experts, head, sums over devices; from the geometry alone.

The one generator that every engine prices its steps with. Kernels between the products (norms, rotary embedding, activation or
the router's choice, sampling) are rows of kind elementwise: each launches, and passes over its activations.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tokentape.hw.spec import HardwareSpec
from tokentape.hw.work import Floats, Ints, Rows, Values, Work
from tokentape.replay.tokens import Blocks, Sums, Tokens
from tokentape.warehouse.formats import bytes_per_value
from tokentape.warehouse.geometry import Geometry

ACTIVATION = "bf16"
WEIGHTS = ("proj", "router", "shared", "dense_ffn", "head", "expert")  # kinds of rows that read them
_VALUE = bytes_per_value(ACTIVATION)
_SIXTEEN_BITS = ("bf16", "fp16")
# Kernels between the products, as vLLM fuses them: in a layer two norms (each adds the residual), rotary embedding, and the
# activation or the router's choice of experts; in a greedy sampler, the last norm with it (assumed: 30 us of a large vocabulary).
_LAYER_KERNELS, _SAMPLER_KERNELS = 4.0, 13.0
_NORM_PASSES, _ROPE_PASSES, _ACT_PASSES, _LOGIT_BYTES = 8.0, 2.0, 3.0, 6.0


def steps_of(
    geometry: Geometry,
    machine: HardwareSpec,
    tokens: Tokens | Sums,
    experts: tuple[Rows, ...],
    blocks: Blocks,
    weight_format: str | Mapping[str, str] = ACTIVATION,
    kv_format: str = ACTIVATION,
) -> Work:
    """The work of whole steps. experts: rows of the routed ones (`resident`), of these blocks. weight_format: of the others, or
    by kind of row where they differ (16 bits where a kind is absent). The machine's devices share every layer; keys and values
    lie in its KV cache tier as far as they fit. Raises ValueError for a tape without widths."""
    if not geometry.hidden:
        raise ValueError("this tape records no widths; give a model instead (see `tokentape models list`)")
    sums = tokens.sums(blocks.windows) if isinstance(tokens, Tokens) else tokens
    layers, n_replicas = _Layers(geometry, machine, sums, blocks, weight_format, kv_format), machine.data_parallel
    made = layers.rows(experts)
    if n_replicas > 1 and np.any(sums.prompt):
        shares = {"busiest": sums.prompt / n_replicas, "busy_pairs": sums.pairs / n_replicas, "busy_seen": sums.seen / n_replicas}
        even = replace(layers, sums=replace(sums, **shares)).rows(experts)
        made = tuple(of if of.waits else replace(of, waits=full) for of, full in zip(even, made, strict=True))
    return Work(n_steps=sums.tokens.shape[0], n_blocks=blocks.n, rows=made, block_times=blocks.times)


def operands(machine: HardwareSpec, weight_format: str) -> dict[str, float]:
    """What fitted operators are told of products with such weights (hw/operators/operator.py); nothing of 16-bit ones. Without a
    tensor rate of their own the weights are widened as they are loaded."""
    if weight_format in _SIXTEEN_BITS:
        return {}
    weight_bits, peaks = 8.0 * bytes_per_value(weight_format), machine.compute.ops_per_s
    is_native = bool(_dtype(machine, weight_format))
    speedup = peaks[weight_format].value / peaks.get("bf16", peaks[machine.dtype]).value if is_native else 1.0  # over gpu_of's
    return {"weight_bits": weight_bits, "value_bits": weight_bits if is_native else 16.0, "speedup": speedup}


def _dtype(machine: HardwareSpec, weight_format: str) -> str:
    """In which products are computed where it is not the machine's dtype: of FP8 weights, where an engine has a rate for them."""
    return weight_format if weight_format == "fp8" and weight_format in machine.compute.ops_per_s else ""


def operator_of(operator: str, number_format: str) -> str:
    """The fitted operator of such weights, or keys and values (`Fit.key`)."""
    return operator if number_format in _SIXTEEN_BITS else f"{operator} {number_format}"


def kv_token_bytes(geometry: Geometry, machine: HardwareSpec, kv_format: str = ACTIVATION) -> float:
    """Keys and values of a token in a layer, on one device; devices beyond the KV heads keep copies."""
    n_values, heads = geometry.kv_elements_per_token_layer, max(1.0, geometry.n_kv_heads / machine.tensor_parallel)
    of_heads = heads * (geometry.head_dim + geometry.value_dim)
    return bytes_per_value(kv_format) * (n_values if geometry.kv_lora_rank else of_heads)


def rebuilt_of(geometry: Geometry, machine: HardwareSpec, tokens: Values, blocks: Ints) -> Rows:
    """Keys and values of so many tokens, multiplied anew from the layer's inputs."""
    kv_values = kv_token_bytes(geometry, machine) / _VALUE
    ops = machine.tensor_parallel * 2.0 * np.asarray(tokens) * geometry.hidden * kv_values
    return Rows(kind="recompute", name="recompute keys and values", engine="main", blocks=blocks, ops=ops, count=1.0)


def weight_bytes(work: Work) -> Floats:
    """(S, blocks) bytes of weights that the steps read."""
    return np.asarray(sum(work.by_cell(rows, rows.bytes) for rows in work.rows if rows.kind in WEIGHTS))


def staged(work: Work, machine: HardwareSpec) -> Work:
    """The work, with its weights written to the machine's buffer and read from it, where it has one."""
    if not machine.roles.stage:
        return work
    told, all_blocks = "weights through their buffer", np.arange(work.n_blocks)
    through = Rows(kind="weights", name=told, tier="stage", target="stage", blocks=all_blocks, bytes=weight_bytes(work))
    return replace(work, rows=(*work.rows, through))


def resident(
    geometry: Geometry, machine: HardwareSpec, blocks: Blocks, n_tokens: Values, active: Values, weight_format: str
) -> tuple[Rows, ...]:
    """Routed experts of steps, all of them where the engine reads them. n_tokens (S, 1): tokens of a step; active: distinct
    experts that they touch, broadcast to (S, MoE blocks). Nothing for a dense model."""
    weights = np.asarray(active) * geometry.expert_params * bytes_per_value(weight_format)
    return experts_of(
        geometry, machine, blocks, n_tokens, active, np.asarray(n_tokens) * geometry.top_k, weights, True, weight_format
    )


def experts_of(
    geometry: Geometry,
    machine: HardwareSpec,
    blocks: Blocks,
    n_tokens: Values,
    active: Values,
    chosen: Values,
    weights: Values,
    is_cached: bool = True,
    weight_format: str = ACTIVATION,
) -> tuple[Rows, ...]:
    """Routed experts that the main engine computes: from the cache where the machine has one, else, or where they are not cached,
    from their home. Fitted operators were measured on weights in the engine's own memory: what is read elsewhere has none.

    All broadcast to (S, MoE blocks). active: distinct experts; chosen: selections, tokens x top-k; weights: bytes of the experts.
    """
    if not blocks.moe.size:
        return ()
    g, d = geometry, machine.n_devices
    selections, n_parts = np.asarray(chosen, np.float64), 1 if machine.expert_parallel else d  # of an expert
    tier = "expert_cache" if machine.roles.expert_cache and is_cached else "expert_home"
    return (
        Rows(
            kind="expert",
            name="routed experts",
            tier=tier,
            engine="main",
            blocks=blocks.moe,
            bytes=weights,
            activation_bytes=selections * (2 * n_parts * g.moe_hidden + 3 * g.expert_intermediate) * _VALUE,
            ops=2.0 * selections * g.expert_params,
            count=1.0,
            dtype=_dtype(machine, weight_format),
            operator=operator_of("moe", weight_format) if machine.roles.of(tier) == machine.fast else "",
            shapes={
                **operands(machine, weight_format),
                "num_tokens": n_tokens,
                "hidden_size": g.moe_hidden,
                "inter_size": g.expert_intermediate,
                "topk": g.top_k,
                "num_experts": g.n_experts,
                "moe_tp_size": n_parts,
                "moe_ep_size": d if machine.expert_parallel else 1,
                "active_experts": np.maximum(1.0, active / d) if machine.expert_parallel else active,
                "matrices": g.ffn_matrices,
            },
        ),
    )


@dataclass(eq=False)
class _Layers:
    """Rows of whole steps; bytes and operations of all devices together, shapes of one, of a machine all whose replicas are as
    full as the busiest."""

    g: Geometry
    machine: HardwareSpec
    sums: Sums
    blocks: Blocks
    weight_format: str | Mapping[str, str]
    kv_format: str

    def __post_init__(self) -> None:
        sums, machine, of = self.sums, self.machine, self.weight_format
        self.d, self.tp, self.dp = machine.n_devices, machine.tensor_parallel, machine.data_parallel
        self.kv_heads = max(1.0, self.g.n_kv_heads / self.tp)
        self.prompt = sums.prompt if sums.busiest is None or self.dp == 1 else sums.busiest
        self.tokens = sums.tokens if self.dp == 1 else (sums.tokens - sums.prompt) / self.dp + self.prompt
        self.format_of = dict.fromkeys(WEIGHTS, of) if isinstance(of, str) else of
        self.kv_value, self.kv_key = bytes_per_value(self.kv_format), operator_of("", self.kv_format)
        self.turns = sums.turns
        self.phase = "prefill" if np.any(sums.prompt) and not np.any(sums.decodes) else "decode"  # of rows that serve both
        self.all = np.arange(self.blocks.n - 1)
        self.mixing = self.blocks.mixing
        self.is_state = np.isin(self.mixing, np.setdiff1d(self.blocks.with_state, self.blocks.attending))
        self.mixed = sums.of_blocks(self.mixing, self.blocks.n - 1)
        self.near_frac = self._near_frac() if sums.near_frac is None else sums.near_frac

    def rows(self, experts: tuple[Rows, ...]) -> tuple[Rows, ...]:
        """In the order in which they run. experts: of the routed ones."""
        router, others = self.feed_forward()
        is_split, is_handed = (bool(n > 1 and self.machine.roles.peer) for n in (self.tp, self.dp))
        return (
            *self.attention(),
            *(self.all_reduce(self.mixing) * self.g.attentions if is_split else ()),
            *router,
            *(self.hand_over() if is_handed else ()),
            *experts,
            *others,
            *(self.all_reduce(np.union1d(self.blocks.moe, self.blocks.dense)) * self.g.attentions if is_split else ()),
            self.head(),
            *self.elementwise(),
            *self.marks(),
        )

    def product(self, kind: str, name: str, blocks: NDArray[np.int64], m: Floats, n: float, k: float) -> Rows:
        """Activations (m, k) times weights (k, n), on every device."""
        weight_format = self.format_of.get(kind, ACTIVATION)
        return Rows(
            kind=kind,
            name=name,
            tier="weights_home",
            engine="main",
            phase=self.phase,
            blocks=blocks,
            bytes=self.d * n * k * bytes_per_value(weight_format),
            activation_bytes=self.d * m * (n + k) * _VALUE,
            ops=self.d * 2.0 * m * n * k,
            count=1.0,
            times=self.turns,
            dtype=_dtype(self.machine, weight_format),
            operator=operator_of("gemm", weight_format) if self.machine.roles.weights_home == self.machine.fast else "",
            shapes={"m": np.maximum(1.0, m), "n": n, "k": k, **operands(self.machine, weight_format)},
        )

    def attention(self) -> tuple[Rows, ...]:
        """Projections, and attention over the cache and within the prompt."""
        g, heads = self.g, self.g.n_heads / self.tp
        if g.of_windows:
            sums = replace(self.sums, near_frac=self.near_frac)
            parts = (replace(self, g=alike, blocks=of, sums=sums) for alike, of in self._parts())
            return tuple(row for part in parts for row in part.attention())
        output = self.product("proj", "attention output", self.blocks.attending, self.tokens, g.hidden, heads * g.value_dim)
        return (
            *(self._projections(heads) * g.attentions if self.blocks.attending.size else ()),
            *(self._mixers() if self.blocks.with_state.size else ()),
            *(self._decode(heads) if np.any(self.sums.decodes) else ()),
            *(self._prefill(heads) * g.attentions if np.any(self.sums.prompt) else ()),
            *self._kv_write(),
            *(output,) * g.attentions,
        )

    def _parts(self) -> list[tuple[Geometry, Blocks]]:
        """Heads that layers share, and which blocks of attention those are."""
        g, b = self.g, self.blocks
        at = [(has, b.attending[np.isin(b.attending, b.apart) == has]) for has in (False, True)]
        parts = [(g.alike(has), replace(b, attending=of, with_state=b.with_state[: 0 if has else None])) for has, of in at]
        return [(alike, of) for alike, of in parts if of.mixing.size] if g.of_windows else [(g, b)]

    def _mixers(self) -> tuple[Rows, ...]:
        """What layers with a state multiply in place of queries, keys, values and outputs."""
        g, m, at = self.g, self.tokens, self.blocks.with_state
        return (
            self.product("proj", "mixer input", at, m, g.mixer_in / self.tp, g.hidden),
            self.product("proj", "mixer output", at, m, g.hidden, g.mixer_out / self.tp),
        )

    def _projections(self, heads: float) -> tuple[Rows, ...]:
        """Query, key and value; for MLA through their latents."""
        g, m = self.g, self.tokens
        if not g.kv_lora_rank:
            width = heads * (g.head_dim * (1 + g.has_query_gate) + g.has_head_gate)
            width += self.kv_heads * (g.head_dim + (0 if g.is_value_key else g.value_dim))
            return (self.product("proj", "query, key, value", self.blocks.attending, m, width, g.hidden),)
        gates = heads * (g.v_head_dim * g.has_query_gate + g.has_head_gate)
        down = gates + g.kv_lora_rank + g.qk_rope_head_dim + g.q_lora_rank + g.index_head_dim + g.index_n_heads
        query = heads * (g.qk_nope_head_dim + g.qk_rope_head_dim) + g.index_n_heads * g.index_head_dim
        up = heads * (g.qk_nope_head_dim + g.v_head_dim)
        return (
            self.product("proj", "latents", self.blocks.attending, m, down, g.hidden),
            self.product("proj", "query", self.blocks.attending, m, query, g.q_lora_rank or g.hidden),
            self.product("proj", "key and value up", self.blocks.attending, m, up, g.kv_lora_rank),
        )

    def _cached_token_bytes(self, geometry: Geometry) -> Floats:
        """(S, 1) bytes that the cache holds of a token in a layer, on one device: keys and values, or their input."""
        sums = self.sums
        as_kv = kv_token_bytes(geometry, self.machine, self.kv_format) * sums.kv_frac * (1.0 - sums.recomputed)
        return np.asarray(as_kv + sums.recomputed * geometry.hidden * _VALUE)

    def _near_frac(self) -> Floats | float:
        """(S, 1) share of the keys and values that the KV cache tier has room for; 0 where the machine has none."""
        tier = self.machine.tiers.get(self.machine.roles.kv_cache)
        if tier is None:
            return 0.0
        held_bytes: Floats = np.zeros(1)
        for alike, of in self._parts():
            held = self.sums.of_blocks(of.mixing, self.blocks.n - 1).held + self.g.tokens_beside * self.sums.decodes
            tokens = (held * self.blocks.times[:, of.mixing]).sum(axis=1, keepdims=True)
            held_bytes = held_bytes + self._cached_token_bytes(alike) * tokens
        return np.asarray(np.minimum(1.0, self.dp * tier.capacity_bytes.value / np.maximum(held_bytes, 1.0)))

    def _decode(self, heads: float) -> tuple[Rows, ...]:
        g, sums = self.g, self.mixed
        per_pair = 2.0 * (2 * g.kv_lora_rank + g.qk_rope_head_dim if g.kv_lora_rank else g.head_dim + g.value_dim) * g.attentions
        shapes = self._heads(heads) | {"batch_size": np.maximum(1.0, sums.decodes / self.dp), "isl": 1}
        shapes |= {"step": np.maximum(0.0, sums.context - 1), "prompt_tokens": sums.prompt, "longest": sums.longest}
        beside = sums.decodes * g.tokens_beside
        states = sums.keys * self.is_state + 2.0 * beside
        row = replace(
            self._attend("kv_read", "decode attention", sums.decodes > 0, "decode_attention", shapes),
            bytes=self.tp * (sums.keys + states) * self._cached_token_bytes(g),  # a state is written anew
            ops=self.tp * heads * (sums.scores + beside) * per_pair,
            streams=sums.decodes,
        )
        rebuilt = (rebuilt_of(g, self.machine, sums.keys * sums.recomputed, self.mixing),) if np.any(sums.recomputed) else ()
        return (*self._placed(row), *rebuilt)

    def _prefill(self, heads: float) -> tuple[Rows, ...]:
        """Queries and outputs of the slice; keys and values of all that it attends to."""
        g, sums = self.g, self.mixed
        pairs = sums.pairs if sums.busy_pairs is None or self.dp == 1 else sums.busy_pairs
        seen = sums.seen if sums.busy_seen is None or self.dp == 1 else sums.busy_seen
        beside = self.prompt * g.tokens_beside
        of_value = g.head_dim if g.kv_lora_rank else g.value_dim
        shapes = self._heads(heads) | {
            "batch_size": sums.prompts if sums.crowd is None else sums.crowd,
            "isl": np.maximum(1.0, sums.length),
            "before": sums.before,
        }
        shapes |= {"decodes": sums.decodes / self.dp, "context": sums.context, "longest": sums.longest}
        row = replace(
            self._attend("attend", "prefill attention", sums.prompt > 0, "prefill_attention", shapes),
            bytes=self.d * seen * self.kv_heads * (g.head_dim + of_value) * self.kv_value,
            activation_bytes=self.d * self.prompt * heads * (g.head_dim + of_value) * _VALUE,
            ops=self.d * 2.0 * heads * (pairs + beside) * (g.head_dim + g.value_dim),
        )
        return self._placed(row)

    def _attend(self, kind: str, name: str, is_there: NDArray[np.bool_], operator: str, shapes: dict[str, Values]) -> Rows:
        """is_there (S, 1): steps that attend so; the others have no kernel of it."""
        roles = self.machine.roles  # kernels were measured on caches that lie in the engine's own memory whole
        is_fitted = not self.g.kv_lora_rank and roles.kv_home == self.machine.fast and not roles.kv_cache
        return Rows(
            kind=kind,
            name=name,
            tier="kv_home",
            engine="main",
            phase="prefill" if kind == "attend" else "decode",
            blocks=self.mixing,
            count=1.0,
            times=self.turns if is_there.all() else self.turns * is_there,
            operator=operator + self.kv_key if is_fitted else "",
            shapes=shapes | {"kv_bits": 8.0 * self.kv_value} if is_fitted else {},
        )

    def _kv_write(self) -> tuple[Rows, ...]:
        """Keys and values of the step's own tokens, into their cache."""
        written = self.mixed.tokens if self.mixed.kept is None else self.mixed.kept
        row = Rows(
            kind="kv_write",
            name="write keys and values",
            tier="kv_home",
            engine="main",
            blocks=self.mixing,
            bytes=self.tp * written * self._cached_token_bytes(self.g),
            times=self.turns,
        )
        return self._placed(row)

    def _placed(self, row: Rows) -> tuple[Rows, ...]:
        """Keys and values where they lie: in the KV cache tier as far as they fit, else at their home."""
        near = self.near_frac
        if not np.any(near):
            return (row,)
        return (
            _share(row, 1.0 - near),
            replace(_share(row, near), tier="kv_cache", name=f"{row.name}, near", count=0.0, operator="", shapes={}),
        )

    def _heads(self, heads: float) -> dict[str, Values]:
        windows = self.blocks.windows[None, self.mixing]
        return {"num_heads": heads, "num_key_value_heads": self.kv_heads, "head_dim": self.g.head_dim, "window_size": windows}

    def feed_forward(self) -> tuple[tuple[Rows, ...], tuple[Rows, ...]]:
        """The routers of MoE layers; their shared experts, and the FFN of dense layers."""
        g, moe, n_scores = self.g, self.blocks.moe, self.g.n_experts + self.g.n_idle_experts
        router = (self.product("router", "router", moe, self.tokens, n_scores, g.hidden),) if moe.size else ()
        shared = self._ffn("shared", "shared experts", moe, g.shared_intermediate)
        if g.expert_hidden and moe.size:
            ways = (("into experts' space", g.expert_hidden, g.hidden), ("out of experts' space", g.hidden, g.expert_hidden))
            shared += tuple(self.product("shared", name, moe, self.tokens, n, k) for name, n, k in ways)
        return router, (*shared, *self._ffn("dense_ffn", "dense FFN", self.blocks.dense, g.dense_intermediate))

    def _ffn(self, kind: str, name: str, blocks: NDArray[np.int64], width: int) -> tuple[Rows, ...]:
        if not width or not blocks.size:
            return ()
        g, up = self.g, (self.g.ffn_matrices - 1) * width / self.tp
        return (
            self.product(kind, f"{name}, up", blocks, self.tokens, up, g.hidden),
            self.product(kind, f"{name}, down", blocks, self.tokens, g.hidden, width / self.tp),
        )

    def head(self) -> Rows:
        """Logits of every decode, and of the last token of a prompt."""
        last = np.array([self.blocks.n - 1])
        return self.product("head", "output head", last, self.sums.logits / self.dp, self.g.vocab / self.tp, self.g.hidden)

    def elementwise(self) -> tuple[Rows, ...]:
        """Kernels between the products, whose activations every device passes over: of the layers, and of the sampler."""
        g, last = self.g, np.array([self.blocks.n - 1])
        heads = (g.n_heads + 2.0 * max(g.n_kv_heads, 1)) * g.head_dim / self.tp
        is_dense = np.isin(self.all, self.blocks.dense)
        values = _NORM_PASSES * g.hidden + _ROPE_PASSES * heads + is_dense * _ACT_PASSES * g.dense_intermediate / self.tp
        between = Rows(
            kind="elementwise",
            name="norms, rotary embedding, activation",
            tier="weights_home",
            engine="main",
            phase=self.phase,
            blocks=self.all,
            activation_bytes=self.d * self.tokens * values * _VALUE,
            count=_LAYER_KERNELS,
            times=self.turns,
        )
        logits = self.tp * self.sums.logits * g.vocab * _LOGIT_BYTES
        return between, replace(between, name="sampler", blocks=last, activation_bytes=logits, count=_SAMPLER_KERNELS)

    def marks(self) -> tuple[Rows, ...]:
        """One per layer and one per step, for what an engine spends on each: prefill's where it carries prompt tokens."""
        last, carries = np.array([self.blocks.n - 1]), self.sums.carries_prompt
        return tuple(
            Rows(kind=kind, name=f"host, per {kind}", phase=phase, blocks=at, count=count, times=self.turns)
            for kind, at in (("layer", self.all), ("step", last))
            for phase, count in (("decode", 1.0 - carries), ("prefill", carries))
            if np.any(count)
        )

    def all_reduce(self, blocks: Ints) -> tuple[Rows, ...]:
        """The devices' parts of the hidden states, summed after attention or an FFN: a ring sends 2 (d - 1) / d of the bytes over
        each link (Patarasuk and Yuan, 2009, doi 10.1016/j.jpdc.2008.09.002), one latency per collective, since libraries overlap
        the hops."""
        return (self._collective("all_reduce", "all-reduce", blocks, self.tp, 2.0, self.g.hidden),)

    def hand_over(self) -> tuple[Rows, ...]:
        """Tokens to their experts' devices and back: all-gathers of hidden states and router scores, a reduce-scatter of sums;
        one of either moves half of what an all-reduce does, as if every replica had as many tokens as the busiest, whose link is
        the slowest (vLLM, pynccl.py: all_gatherv is a broadcast from every replica)."""
        g, moe = self.g, self.blocks.moe
        made = (("tokens to their experts", g.moe_hidden), ("router scores", g.n_experts), ("sums of experts", g.moe_hidden))
        return tuple(self._collective("gather", name, moe, self.d, 1.0, n) for name, n in made) if moe.size else ()

    def _collective(self, operator: str, name: str, blocks: NDArray[np.int64], n: int, sent: float, width: int) -> Rows:
        """So many values of every token among n devices, in every group of them, `sent` times over each link."""
        tokens, peer = self.dp * self.tokens, self.machine.roles.peer
        link = self.machine.link(peer, peer)
        return Rows(
            kind="all_reduce",
            name=name,
            tier="peer",
            target="peer",
            blocks=blocks,
            bytes=sent * (n - 1) * tokens * width * _VALUE,
            count=1.0,
            times=self.turns,
            operator=operator if link else "",
            shapes={
                "num_gpus": n,
                "message_size": np.maximum(1.0, tokens * width * n / self.d),
                "link_bytes_per_s": link[1].peak_bytes_per_s.value if link else 0.0,
            },
        )


def _share(row: Rows, frac: Values) -> Rows:
    """A part of what the row moves and computes."""
    n_bytes, activation_bytes, ops = (frac * np.asarray(values) for values in (row.bytes, row.activation_bytes, row.ops))
    return replace(row, bytes=n_bytes, activation_bytes=activation_bytes, ops=ops)
