"""Kelle's systems in closed form, and what its policies cost a live model."""

from tokentape.warehouse.schema.table import View, names, places

TABLES = {
    "kelle_points": View(
        names(
            "series setting setting_value model_id workload n_context_tokens n_decode_tokens batch system budget_tokens mode "
            "knobs role step_s energy_j dram_j weight_sram_j kv_j refresh_j array_j leakage_j weight_bytes kv_read_bytes "
            "kv_dram_bytes speed_gain energy_gain typical_err_frac worst_err_frac dram_overflow_bytes notes"
        ),
        names("series setting model_id workload n_context_tokens n_decode_tokens batch system budget_tokens mode knobs"),
        "a decode step of a model on one of Kelle's systems; without time and energy where the mode says that it does not fit",
        nullable=names(
            "setting_value budget_tokens step_s energy_j dram_j weight_sram_j kv_j refresh_j array_j leakage_j weight_bytes "
            "kv_read_bytes kv_dram_bytes speed_gain energy_gain"
        ),
        engine="kelle",
        facts=names("setting_value n_context_tokens n_decode_tokens budget_tokens"),
    ),
    "kelle_requests": View(
        names(
            "model_id n_context_tokens n_decode_tokens batch system budget_tokens mode knobs prefill_s prefill_j decode_s "
            "decode_j speed_gain energy_gain dram_overflow_bytes"
        ),
        names("model_id n_context_tokens n_decode_tokens batch system mode knobs"),
        "a batch of requests from the first prompt token to the last output token on one of Kelle's systems",
        nullable=names("budget_tokens prefill_s prefill_j decode_s decode_j speed_gain energy_gain"),
        engine="kelle",
        facts=names("n_context_tokens n_decode_tokens budget_tokens"),
    ),
    "kelle_recompute": View(
        names("model_id workload batch mode recomputed_frac ops_per_byte ops_per_s roof_ops_per_s is_compute_bound step_s label"),
        names("model_id workload batch mode recomputed_frac"),
        "a share of recomputed KV vectors on the roofline of the 32 x 32 array",
        engine="kelle",
        facts=names("recomputed_frac"),
    ),
    "kelle_lifetimes": View(
        names("model_id batch budget_tokens schedule tensor start_s seconds"),
        names("model_id batch budget_tokens schedule tensor"),
        "how long a layer's data stays in eDRAM",
        engine="kelle",
        values="busy",
        at=places("tensor=resource start_s seconds"),
        facts=names("budget_tokens"),
    ),
    "kelle_parts": View(
        names("hardware part area_mm2 published_area_mm2 power_w published_power_w knobs"),
        names("hardware part knobs"),
        "a part of Kelle's chip: from Table 1 and the traffic of LLaMA2-7B on PG19, beside the published shares",
        nullable=names("area_mm2 published_area_mm2 power_w published_power_w"),
        engine="kelle",
        values="series",
        at={"part": "part"},
    ),
    "kelle_retention": View(
        names("sigma anchor_frac interval_s failure_frac refresh_group"),
        names("sigma anchor_frac interval_s refresh_group"),
        "share of eDRAM cells that lose their bit within an interval, by an assumed lognormal curve",
        engine="kelle",
        values="curves",
        at={"interval_s": "x"},
        facts=names("sigma anchor_frac"),
    ),
    "kelle_checks": View(
        names("check series setting knobs mode value published unit bar_high how"),
        names("check series setting knobs mode"),
        "a number of the paper derived a second way, an error over its ratios, or an order of systems that the fit turns round",
        nullable=names("setting knobs mode published bar_high"),
        engine="kelle",
        values="checks",
        at=places("check value published unit bar_high how"),
    ),
    "kelle_quality": View(
        names(
            "series model_id dataset policy parameters setting setting_value budget_tokens storage n_seeds metric unit value "
            "low high"
        ),
        names("series model_id dataset policy parameters metric"),
        "what a KV policy and a way to store keys and values cost a live model: mean and range over seeds",
        nullable=names("setting_value budget_tokens"),
        engine="live",
        facts=names("setting_value budget_tokens n_seeds"),
        decisions={"kv": "policy"},
    ),
    "kelle_pareto": View(
        names(
            "model_id dataset policy parameters setting setting_value budget_tokens storage n_seeds perplexity low high "
            "kv_bytes hardware knobs n_context_tokens n_decode_tokens batch interval_s recomputed_frac "
            "decode_energy_j_per_token step_s dram_j weight_sram_j kv_j refresh_j array_j leakage_j is_front"
        ),
        names("model_id dataset policy parameters hardware"),
        "perplexity inside a live model beside the energy of a decode step of that model on a machine of Kelle's",
        nullable=names("setting_value budget_tokens interval_s"),
        engine="live",
        band="perplexity",
        facts=names("setting_value budget_tokens n_seeds n_context_tokens n_decode_tokens interval_s"),
        decisions={"kv": "policy"},
    ),
}
