"""What of a model fits where on a machine: weights, experts, keys and values, drafts and activations, tier by tier."""

from bisect import bisect_left
from dataclasses import dataclass, replace

from tokentape.hw.held import by_tier
from tokentape.hw.spec import HardwareSpec
from tokentape.policies.serving import Chunked
from tokentape.replay.serving.memory import activation_bytes
from tokentape.warehouse.formats import EXPERT_FORMATS
from tokentape.warehouse.geometry import Geometry
from tokentape.warehouse.model_sizes import kv_bytes, other_bytes

MOST = 2**24  # requests, tokens
FLOATS = "bf16"  # of the input table and the vectors


@dataclass(frozen=True)
class Asked:
    """What is to fit. batch requests of context_tokens; prefill_tokens: of prompts in one pass. cache_bytes: of experts in the
    fast tier, where the machine has one in front of them; None: all that is left of it, at least one layer's event, at most all
    experts. draft_bits: of a copy of the whole model that drafts; 0: none."""

    batch: int = 1
    context_tokens: int = 4096
    expert_format: str = "bf16"
    weight_format: str = "bf16"
    kv_format: str = "bf16"
    prefill_tokens: int = 512
    draft_bits: float = 0.0
    cache_bytes: float | None = None


@dataclass(frozen=True)
class Room:
    """held: bytes by role. tiers: name -> room, and bytes of what lies there."""

    asked: Asked
    held: dict[str, float]
    tiers: dict[str, tuple[float, dict[str, float]]]

    @property
    def missing(self) -> dict[str, float]:
        """Bytes that a tier lacks."""
        left = {name: sum(what.values()) - room for name, (room, what) in self.tiers.items()}
        return {name: n_bytes for name, n_bytes in left.items() if n_bytes > 0}

    @property
    def cached_frac(self) -> float | None:
        """Share of the experts in the fast tier, 1 where they have no other; None where there are none, or not all fits."""
        experts = self.held["expert_home"]
        return None if self.missing or not experts else self.held.get("expert_cache", experts) / experts


def room_of(geometry: Geometry, machine: HardwareSpec, asked: Asked) -> Room:
    """What lies where. Raises ValueError for an unknown format."""
    g, roles = geometry, machine.roles
    sizes = g.expert_bytes(asked.expert_format) if g.moe_layers else ()
    experts = float(sum(sizes) * g.n_experts)
    others = other_bytes(g, asked.weight_format, FLOATS) * machine.data_parallel
    rule = Chunked(asked.prefill_tokens).rule(g.n_layers)
    held = {
        "weights_home": float(others),
        "expert_home": experts,
        "kv_home": float(asked.batch * kv_bytes(g, asked.context_tokens, asked.kv_format, machine.tensor_parallel)),
        "draft_home": asked.draft_bits / 8.0 * (g.expert_params * g.n_experts * len(g.moe_layers) + g.non_expert_params),
        "buffers": float(activation_bytes(g, machine.n_devices, rule, asked.batch, 0)),
    }
    if roles.expert_cache and sizes:
        least, beside = float(g.top_k * max(sizes)), by_tier(machine, held).get(roles.expert_cache, (0.0, {}))[1]
        room = machine.tiers[roles.expert_cache].capacity_bytes.value * machine.n_devices
        left = min(experts, room - sum(beside.values())) if asked.cache_bytes is None else asked.cache_bytes
        held["expert_cache"] = max(least, left)
    return Room(asked, held, by_tier(machine, held))


def largest(geometry: Geometry, machine: HardwareSpec, asked: Asked, name: str) -> int:
    """The largest batch or context_tokens that fits with all else as asked, at most MOST; 0: not one does."""

    def lacks(n: int) -> bool:
        return bool(room_of(geometry, machine, replace(asked, **{name: n})).missing)  # type: ignore[arg-type]

    return bisect_left(range(1, MOST + 1), True, key=lacks)


def widths(geometry: Geometry, machine: HardwareSpec, asked: Asked) -> list[Room]:
    """As asked, with experts and other weights in every format, widest first."""
    names = sorted(EXPERT_FORMATS.keys() - {"fp16"}, key=lambda name: (-EXPERT_FORMATS[name], name))
    return [room_of(geometry, machine, replace(asked, expert_format=name, weight_format=name)) for name in names]


def devices(geometry: Geometry, machine: HardwareSpec, asked: Asked) -> int:
    """How many such devices hold it, sharing every layer; 0: no number up to 1,024 does."""
    counts = (machine.n_devices * 2**i for i in range(11))
    found = (n for n in counts if n <= 1024 and not room_of(geometry, replace(machine, n_devices=n), asked).missing)
    return next(found, 0)
