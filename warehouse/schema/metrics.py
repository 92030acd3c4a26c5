"""Every number that an engine names in its rows: unit and meaning. Numbers with a column of their own are declared there."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """unit: empty for counts of nothing; meaning: one line."""

    unit: str
    meaning: str


_DEPTHS = 64  # of a draft, at most
_QUANTILES = (50, 90, 95, 99)
_CHANGED = ("ttft_mean_s", "tbt_mean_s", "tbt_p99_s", "e2e_mean_s", "energy_j_per_token", "expert_bytes")
_ENERGY = {
    "fast": "the fast tier",
    "backing": "the tier of the misses",
    "link": "links",
    "compute": "operations",
    "background": "background power",
    "static": "static power over the whole time",
    "bytes": "bytes moved",
    "ops": "operations, by the serving engine's coefficient",
}
_PARTS = ("moe", "dense", "attention", "communication", "other")

_ACCEPTED = {
    "tau_accepted": Metric("tokens", "drafted tokens accepted in a round, mean"),
    "tau_committed": Metric("tokens", "tokens of a round with the target's own, mean"),
    **{
        f"alpha_{i}_conditional": Metric("1", f"share of rounds that accept {i} of those that accept {i - 1}")
        for i in range(1, _DEPTHS)
    },
    **{f"alpha_{i}_marginal": Metric("1", f"share of rounds that accept at least {i}") for i in range(1, _DEPTHS)},
    **{f"accepted_{i}": Metric("1", f"share of rounds that accept exactly {i}") for i in range(_DEPTHS)},
}

METRICS: dict[str, Metric] = {
    # expert caches
    "n_lookups": Metric("1", "lookups of an expert"),
    "n_hits": Metric("1", "lookups that found it in the fast tier"),
    "n_moved": Metric("experts", "experts that a placement moved to the fast tier before a layer computed"),
    "hit_frac": Metric("1", "share of lookups that hit"),
    "hit_frac_prefill": Metric("1", "the same of prompts"),
    "hit_frac_decode": Metric("1", "the same while decoding"),
    "backing_bytes": Metric("B", "bytes that misses fetch"),
    "decode_step_s": Metric("s", "time of a decode pass, mean"),
    "decode_step_p99_s": Metric("s", "its 99th percentile"),
    "decode_energy_j_per_token": Metric("J", "energy of a decoded token, mean"),
    "decode_tokens_per_s": Metric("1/s", "decoded tokens over the time of decode passes"),
    "prefill_s": Metric("s", "time of all prompts"),
    "prefill_energy_j": Metric("J", "energy of all prompts"),
    "total_s": Metric("s", "time of all passes that are priced"),
    "total_energy_j": Metric("J", "energy of all that is priced"),
    "early_step_s": Metric("s", "time of a decode pass among the first of a generation, mean"),
    "early_energy_j_per_token": Metric("J", "energy of a token among the first of a generation, mean"),
    **{f"energy_{part}_j": Metric("J", f"energy of {what}") for part, what in _ENERGY.items()},
    "flash_energy_frac": Metric("1", "share of the energy of decoded tokens that reads of the backing tier take"),
    # bit-sliced experts
    "high_bit_miss_frac": Metric("1", "bytes fetched over accesses x high-precision expert bytes"),
    "critical_frac": Metric("1", "share of accesses that need the low slice"),
    "critical_per_layer": Metric("1", "critical experts of a token in a layer, mean"),
    "degraded_frac": Metric("1", "share of critical accesses that did without the low slice"),
    "kept_gate_mass_frac": Metric("1", "gate weight of the experts used over that of the router's own choice"),
    "low_bit_mass_frac": Metric("1", "gate weight of experts used at low precision over that of the router's own choice"),
    "rerouted_frac": Metric("1", "share of accesses of an expert that the router did not choose"),
    # serving
    "n_requests": Metric("1", "requests served"),
    **{f"{what}_p{q}_s": Metric("s", f"{q}th percentile of {what.upper()}") for what in ("ttft", "tbt") for q in _QUANTILES},
    "ttft_mean_s": Metric("s", "time from arrival to the first output token, mean"),
    "tbt_mean_s": Metric("s", "time between output tokens, mean"),
    "tbt_std_s": Metric("s", "its standard deviation"),
    "e2e_mean_s": Metric("s", "time from arrival to the last output token, mean"),
    "largest_gap_s": Metric("s", "longest time between two output tokens of a request"),
    "jain": Metric("1", "Jain's index of fairness over requests"),
    "away_frac": Metric("1", "share of the tokens' experts that computed outside the fast tier"),
    "fetched_bytes_per_token": Metric("B", "bytes of experts that came into the fast tier, over output tokens"),
    "fetched_bytes_per_prompt_token": Metric("B", "bytes of experts missed in layers with prompts, over prompt tokens"),
    "kv_read_bytes_per_token": Metric("B", "keys and values that decodes read, over output tokens"),
    "kv_peak_bytes": Metric("B", "keys and values held at once, the most"),
    "refresh_j_per_token": Metric("J", "refresh of keys and values held, over output tokens"),
    "expert_bytes": Metric("B", "bytes of routed experts read"),
    "expert_bytes_per_request": Metric("B", "the same over requests"),
    "energy_j_per_token": Metric("J", "energy over prompt and output tokens"),
    "energy_j_per_output_token": Metric("J", "energy over output tokens"),
    "decode_batch_mean": Metric("1", "requests that decode in an iteration, mean"),
    "output_tokens_per_s": Metric("1/s", "output tokens over wall time"),
    "queue_mean": Metric("1", "requests that wait, mean over time"),
    "queue_max": Metric("1", "their largest number"),
    "busy_frac": Metric("1", "share of wall time in iterations"),
    **{f"{part}_frac": Metric("1", f"share of busy time: {part}") for part in _PARTS},
    **{f"{name}_change_frac": Metric("1", f"relative change of {name} against the point compared with") for name in _CHANGED},
    "kv_blocks": Metric("1", "blocks of KV that the machine holds"),
    "experts_held_frac": Metric("1", "share of the routed experts that the fast tier holds beside KV, where not all"),
    "accepted_mean": Metric("1", "drafts accepted in a request's round, mean"),
    "verified_mean": Metric("1", "drafts verified in a request's round, mean"),
    "draft_frac": Metric("1", "share of busy time: passes that draft, which are also of part other"),
    "saturation_per_s": Metric("1/s", "rate at which requests leave that come at once"),
    "saturation_distance_frac": Metric("1", "how far below that rate requests arrive"),
    "slo_frac": Metric("1", "share of requests within both limits"),
    "slo_ttft_frac": Metric("1", "share within the limit of the first token"),
    "slo_tbt_frac": Metric("1", "share within the limit between tokens"),
    "goodput_per_s": Metric("1/s", "requests within both limits over wall time"),
    # GPU with near-data processing
    "step_s": Metric("s", "time of a step; of GPU-NDP systems, of a layer of it"),
    "step_j": Metric("J", "energy of a step"),
    "tokens_per_s": Metric("1/s", "generated tokens over time"),
    "other_s": Metric("s", "attention, KV and what does not depend on experts, of a layer-step"),
    "gpu_s": Metric("s", "experts on the GPU, of a layer-step"),
    "ndp_s": Metric("s", "experts in the NDP, of a layer-step"),
    "activation_s": Metric("s", "activations over the link, of a layer-step"),
    "transfer_s": Metric("s", "weights over the link, of a layer-step"),
    "wait_s": Metric("s", "the GPU waits for the NDP, of a layer-step"),
    "ndp_gain": Metric("x", "time of the experts on the NDP alone over that with the GPU's share"),
    "decode_gain": Metric("x", "tokens per second over MoNDE's"),
    "gain_over_hobbit": Metric("x", "tokens per second over HOBBIT's"),
    "moved_per_layer_step": Metric("experts", "experts that change places in a layer-step"),
    "link_weight_bytes_per_token": Metric("B", "weights over the link per generated token"),
    "link_activation_bytes_per_token": Metric("B", "activations over the link per generated token"),
    "ndp_bytes_per_token": Metric("B", "weights that the NDP reads per generated token"),
    # inside a live model
    "perplexity": Metric("1", "exp of the mean nll per token"),
    "perplexity_ratio": Metric("1", "perplexity over that of the series' first setting"),
    "kl": Metric("nats", "KL divergence from the unmodified model, mean per token"),
    "acceptance": Metric("1", "mean over tokens of sum_v min(p, q) against the unmodified model"),
    "accuracy": Metric("1", "share of items answered exactly"),
    "kv_bytes": Metric("B", "bytes of keys, values and inputs kept"),
    "miss_frac": Metric("1", "bytes fetched over accesses x high-precision expert bytes"),
    "flash_bytes_per_token": Metric("B", "bytes fetched per decoded token"),
    "dram_bytes_per_token": Metric("B", "bytes of experts read per decoded token"),
    # drafts
    "pool_overlap_frac": Metric("1", "share of the verified tokens' experts that the pool held"),
    "captured_mass_frac": Metric("1", "gate weight of the verified tokens' experts that the pool held"),
    **_ACCEPTED,
    **{f"tree_{name}": metric for name, metric in _ACCEPTED.items()},
}
