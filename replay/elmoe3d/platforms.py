"""The paper's baselines: the same xPU with EXT alone, with compute inside EXT's devices, or next to some of its channels.

What the paper (section 7) does not give is an argument: nodes verified and drafted per request, the bandwidth of near-memory
compute, what it holds. Shares of compute that a file calls reached are left out: the paper's rates stand as they are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from tokentape.hw.spec import HardwareSpec
from tokentape.replay.elmoe3d.hits import HIT_LAWS
from tokentape.replay.elmoe3d.points import Floats, Points
from tokentape.replay.elmoe3d.runs import Mode, Run, need_nodes
from tokentape.replay.elmoe3d.shape import BYTES_PER_PARAM
from tokentape.replay.elmoe3d.timing import faded
from tokentape.replay.elmoe3d.unions import touched

Holds = Literal["dense", "experts"]


@dataclass(frozen=True)
class Platform:
    """A baseline. near: compute at near_bytes_per_s and near_ops_per_s, `devices` inside all of EXT, `channels` next to those
    that hold near_capacity_bytes; the xPU then reads the rest at rest_bytes_per_s."""

    name: str
    ext_bytes_per_s: float
    ops_per_s: float
    near: Literal["", "devices", "channels"] = ""
    near_bytes_per_s: float = 0.0
    near_ops_per_s: float = 0.0
    near_capacity_bytes: float = 0.0
    rest_bytes_per_s: float = 0.0
    holds: Holds = "dense"


def platform_of(spec: HardwareSpec, near_ext_ratio: float | None = None, holds: Holds = "dense") -> Platform:
    """From one of the files elmoe3d-xpu*.toml. near_ext_ratio: bandwidth of near-memory compute over EXT, instead of the file's.

    Raises ValueError for a machine that is none of them.
    """
    ext, xpu, near = spec.tiers.get("ext"), spec.engines.get("xpu"), spec.engines[spec.engine]
    if ext is None or xpu is None:
        raise ValueError(f"machine {spec.name}: needs a tier ext and an engine xpu; base the file on elmoe3d-xpu")
    rate, ops = ext.peak_bytes_per_s.value * ext.efficiency_frac.value, xpu.ops_per_s["int8"].value
    if near is xpu:
        return Platform(spec.name, rate, ops)
    if near.memory not in spec.tiers or near.memory_bytes_per_s is None:
        raise ValueError(f"machine {spec.name}: engines.{spec.engine} needs a memory and its memory_bytes_per_s")
    tier = spec.tiers[near.memory]
    near_rate, near_ops = near.memory_bytes_per_s.value * tier.efficiency_frac.value, near.ops_per_s[spec.dtype].value
    if tier is ext:
        return Platform(spec.name, rate, ops, "devices", near_rate, near_ops)
    whole = rate + tier.peak_bytes_per_s.value * tier.efficiency_frac.value
    near_rate = near_rate if near_ext_ratio is None else near_ext_ratio * whole
    return Platform(spec.name, whole, ops, "channels", near_rate, near_ops, tier.capacity_bytes.value, rate, holds)


def baseline(p: Points, on: Platform, mode: Mode) -> Run:
    """A baseline in AR, or speculating with the head of EAGLE, which it reads like its dense layers."""
    need_nodes(p)
    static = p.static_bytes + p.kv_bytes
    if mode == "ar":
        n_tokens, beta, computed, tokens = p.batch, p.beta, p.batch, p.batch
    else:
        n_tokens, beta = p.verify_tokens * p.batch**p.growth, faded(p)
        computed, tokens = p.batch * p.verify_nodes, p.batch * (1.0 + p.accepted_len)
    run = _pass(p, on, static, n_tokens, beta, computed)
    if mode == "ar":
        return replace(run, tokens=tokens)
    head_ops = 2.0 * p.batch * p.draft_nodes * p.head_bytes / BYTES_PER_PARAM
    is_near = on.near == "channels" and on.holds == "dense"
    rate = on.near_bytes_per_s if is_near else on.ext_bytes_per_s
    head_s = np.maximum(p.head_bytes / rate, head_ops / (on.near_ops_per_s if is_near else on.ops_per_s))
    head_s = np.minimum(head_s, p.head_bytes / on.ext_bytes_per_s)
    d = p.n_draft_steps
    read = d * p.head_bytes
    return replace(
        run,
        seconds=run.seconds + d * head_s,
        tokens=tokens,
        ext_bytes=run.ext_bytes + (0.0 if is_near else read),
        near_bytes=run.near_bytes + (read if is_near else 0.0),
        ops=run.ops + d * head_ops,
    )


def _pass(p: Points, on: Platform, static: Floats, n_tokens: Floats, beta: Floats, computed: Floats) -> Run:
    """A pass: the faster of running experts where they lie and of bringing all to the xPU."""
    expert_bytes = touched(p.weights, n_tokens) * p.expert_bytes * p.n_layers
    static_ops = 2.0 * computed * p.static_params
    expert_ops = 2.0 * computed * p.layer_params * p.n_layers
    zero = np.zeros(len(p))

    def run(seconds: Floats, ext_bytes: Floats, near_bytes: Floats) -> Run:
        return Run(seconds, zero, zero, ext_bytes, near_bytes, static_ops + expert_ops, zero, zero)

    static_s = np.maximum(static / on.ext_bytes_per_s, static_ops / on.ops_per_s)
    brought_s = static_s + np.maximum(expert_bytes / on.ext_bytes_per_s, expert_ops / on.ops_per_s)
    brought = run(brought_s, static + expert_bytes, zero)
    if on.near == "devices":
        local_s = static_s + np.maximum(expert_bytes / on.near_bytes_per_s, expert_ops / on.near_ops_per_s)
        return _faster(brought, run(local_s, static, expert_bytes))
    if on.near == "channels":
        needed = static + p.embedding_bytes if on.holds == "dense" else zero
        all_bytes = p.expert_bytes * p.n_experts * p.n_layers
        share = np.clip((on.near_capacity_bytes - needed) / all_bytes, 0.0, 1.0)
        hits = _hits(p, share, beta, n_tokens)
        near_s = np.maximum(hits * expert_bytes / on.near_bytes_per_s, hits * expert_ops / on.near_ops_per_s)
        rest_s = np.maximum((1.0 - hits) * expert_bytes / on.rest_bytes_per_s, (1.0 - hits) * expert_ops / on.ops_per_s)
        is_dense = on.holds == "dense"
        dense_rate, dense_ops = (on.near_bytes_per_s, on.near_ops_per_s) if is_dense else (on.rest_bytes_per_s, on.ops_per_s)
        dense_s = np.maximum(static / dense_rate, static_ops / dense_ops)
        near_bytes = hits * expert_bytes + (static if is_dense else zero)
        split = run(dense_s + np.maximum(near_s, rest_s), static + expert_bytes - near_bytes, near_bytes)
        return _faster(brought, split)
    return brought


def _hits(p: Points, share: Floats, beta: Floats, n_tokens: Floats) -> Floats:
    (name,) = np.unique(p.hit_model)
    return HIT_LAWS[str(name)](share, beta, p.weights, n_tokens, p.n_experts)


def _faster(first: Run, second: Run) -> Run:
    """Point by point."""
    is_second = second.seconds < first.seconds
    names = ("seconds", "ext_bytes", "near_bytes")
    return replace(first, **{name: np.where(is_second, getattr(second, name), getattr(first, name)) for name in names})
