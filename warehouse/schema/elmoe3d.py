"""ELMoE-3D in closed form, and what drafts are accepted."""

from tokentape.warehouse.schema.table import View, names, places

TABLES = {
    "elmoe3d_points": View(
        names(
            "study series hardware model_id sd_scheme batch context_tokens hb_bytes hb_bytes_per_s hit_model level fit "
            "accepted_form alpha accepted_len fidelity resident_bytes resident_frac spill_bytes cold_bytes ar_hit_frac "
            "draft_hit_frac verify_hit_frac ar_experts draft_experts verify_experts ar_hb_bytes ar_ext_bytes draft_hb_bytes "
            "draft_ext_bytes verify_hb_bytes verify_ext_bytes xpu_step_s ar_step_s n_draft_steps draft_step_s verify_s phi_ar "
            "phi_sd best_mode published_ar published_sd role_ar role_sd is_withheld"
        ),
        names(
            "study series hardware model_id sd_scheme batch context_tokens hb_bytes hb_bytes_per_s hit_model level fit "
            "accepted_form accepted_len"
        ),
        "a model on a machine under a scheme, at a batch: AR, draft and verification in closed form",
        nullable=names("alpha published_ar published_sd role_ar role_sd"),
        engine="elmoe3d",
        facts=names("context_tokens hb_bytes hb_bytes_per_s alpha accepted_len"),
        decisions={"draft": "sd_scheme"},
    ),
    "elmoe3d_mapping": View(
        names("study hardware model_id sd_scheme batch context_tokens tier part placed_bytes"),
        names("study hardware model_id sd_scheme batch context_tokens tier part"),
        "what a part takes in a tier by first fit: static, kv, embedding, draft weights, draft kv, experts, free",
        engine="elmoe3d",
        values="series",
        at={"tier": "label", "part": "part"},
        facts=names("context_tokens"),
        decisions={"draft": "sd_scheme"},
    ),
    "elmoe3d_platforms": View(
        names(
            "study platform model_id dataset batch level hit_model nmp_ext_ratio placement verify_nodes step_mode token_s "
            "speedup is_best fidelity"
        ),
        names("study platform model_id dataset batch level hit_model nmp_ext_ratio placement verify_nodes step_mode"),
        "a platform of the paper in one mode, with what the paper does not give as inputs",
        nullable=names("nmp_ext_ratio placement"),
        engine="elmoe3d",
        facts=names("nmp_ext_ratio verify_nodes"),
    ),
    "elmoe3d_energy": View(
        names("study platform model_id dataset batch level hit_model step_mode is_best part j_per_token low high"),
        names("study platform model_id dataset batch level hit_model step_mode part"),
        "energy of a part per emitted token: compute, ext, hb, links, static; band over the machine file's ranges",
        engine="elmoe3d",
        values="series",
        at={"part": "part"},
        band="j_per_token",
    ),
    "elmoe3d_misses": View(
        names("study source origin model_id dataset batch hit_model cache_frac cache_experts miss_frac_lookups fidelity"),
        names("study source model_id dataset batch hit_model cache_frac"),
        "misses of a per-layer cache by batch: replayed from a tape whose requests are decoded side by side, or in closed form",
        engine="elmoe3d",
        values="curves",
        at={"cache_frac": "x"},
    ),
    "elmoe3d_intensity": View(
        names("study hardware model_id batch step_mode part ops_per_byte"),
        names("study hardware model_id batch step_mode part"),
        "operations per byte of a pass; part: static, experts, or the knee of a tier (`knee hb`, `knee ext`, at batch 1)",
        engine="elmoe3d",
        values="series",
        at={"part": "part"},
    ),
    "elmoe3d_checks": View(
        names("study block level fit hit_model value unit n bar_low bar_high how"),
        names("study block level fit hit_model"),
        "an error, a mean or a check over the paper's open rows, with the bar it is held to where there is one",
        nullable=names("bar_low bar_high"),
        engine="elmoe3d",
        values="checks",
        at=places("block=check value unit n bar_low bar_high how"),
    ),
    "acceptance_points": View(
        names(
            "study model_id dataset series drafter scheme bits_high bits_low pool_policy pool_frac pool_experts batch depth "
            "width temperature n_seeds n_rounds fidelity metric unit value low high"
        ),
        names(
            "study model_id dataset series drafter scheme bits_high bits_low pool_policy pool_frac batch depth width "
            "temperature fidelity metric"
        ),
        "how much of what a drafter proposes a live model accepts, under one setting: mean and range over seeds",
        engine="live",
        facts=names("bits_high bits_low pool_frac pool_experts depth width temperature n_seeds n_rounds"),
        decisions={"draft": "drafter", "residency": "pool_policy"},
    ),
}
