"""Experts on GPU and NDP: steps, requests, placement, losses and bit widths."""

from tokentape.warehouse.schema.table import View, names, places

TABLES = {
    "cxl_ndp_points": View(
        names(
            "study series setting setting_value model_id source origin hardware system batch hot_experts mean_bits n_seeds "
            "role notes metric unit value low high"
        ),
        names("study series setting model_id source system role metric"),
        "a metric of a decode step on a GPU-NDP system: median and range over seeds",
        nullable=names("setting_value low high"),
        engine="cxl_ndp",
        facts=names("setting_value hot_experts mean_bits n_seeds"),
    ),
    "cxl_ndp_requests": View(
        names(
            "study setting model_id source origin hardware system batch n_context_tokens n_decode_tokens streamed_experts "
            "prefill_s transfer_s other_s gpu_s wait_s ndp_s e2e_s e2e_gain low high gain_over_hobbit is_extrapolated n_seeds"
        ),
        names("study setting model_id source system n_context_tokens n_decode_tokens"),
        "a batch from the first prompt token to the last output token on a GPU-NDP system: mean times, median gains over seeds",
        engine="cxl_ndp",
        band="e2e_gain",
        facts=names("n_context_tokens n_decode_tokens n_seeds"),
    ),
    "cxl_ndp_hits": View(
        names("study model_id source origin batch placement is_bound hot_experts layer gpu_hit_frac low high n_seeds"),
        names("study model_id source batch placement hot_experts layer"),
        "how often decode finds its experts on the GPU under a placement; all layers together where none is named",
        nullable=names("layer"),
        engine="cxl_ndp",
        values="series",
        at={"layer": "layer", "hot_experts": "x"},
        band="gpu_hit_frac",
        facts=names("n_seeds"),
        decisions={"place": "placement"},
    ),
    "cxl_ndp_similarity": View(
        names(
            "study model_id source origin layer own_cosine shuffled_cosine static_cosine flat_cosine flat_shuffled_cosine "
            "static_frac n_requests n_seeds"
        ),
        names("study model_id source layer"),
        "how alike prompt and decode use a layer's experts, and how much of it is popularity; mean of layers where none is named",
        nullable=names("layer static_frac"),
        engine="cxl_ndp",
        values="series",
        at={"layer": "layer"},
        facts=names("n_requests n_seeds"),
    ),
    "cxl_ndp_use": View(
        names("study model_id source origin request_id layer first_step bin_steps expert use_frac"),
        names("study model_id source request_id layer first_step expert"),
        "an expert's share of a request's selections in a bin of decode steps; one never selected in it has no row",
        engine="cxl_ndp",
        values="series",
        at=places("request_id layer first_step=place expert"),
        facts=names("bin_steps"),
    ),
    "cxl_ndp_lanes": View(
        names("study model_id system lane place operation expert start_s seconds"),
        names("study model_id system lane place"),
        "a stretch of one layer-step in which GPU, NDP or link are busy, with an expert where it is one's",
        nullable=names("expert"),
        engine="cxl_ndp",
        values="busy",
        at=places("lane=resource place operation expert start_s seconds"),
    ),
    "cxl_ndp_loss_tables": View(
        names("study model_id source method layer expert bits mse"),
        names("study model_id source method layer expert bits"),
        "the loss of an expert at a width, as the study's bit widths follow from it: measured, or a stand-in",
        engine="cxl_ndp",
        values="series",
        at=places("layer expert bits=place"),
    ),
    "cxl_ndp_bits": View(
        names("study model_id source method rule mean_bits batch importance_rank n_ranked bits_mean bits_p05 bits_p95"),
        names("study model_id source method rule mean_bits batch importance_rank"),
        "bits that a rule gives to a rank of importance",
        engine="cxl_ndp",
        values="curves",
        at={"importance_rank": "x"},
        facts=names("mean_bits"),
        decisions={"precision": "rule"},
    ),
    "cxl_ndp_losses": View(
        names("study model_id source method rule mean_bits batch loss_ratio low high loss_gain n"),
        names("study model_id source method rule mean_bits batch"),
        "table loss of a rule against uniform bits of the same mean",
        engine="cxl_ndp",
        band="loss_ratio",
        facts=names("mean_bits n"),
        decisions={"precision": "rule"},
    ),
    "bit_losses": View(
        names("study model_id source method ranking hot_experts layer rule mean_bits loss uniform_loss optimum_loss"),
        names("study source method ranking hot_experts layer rule mean_bits"),
        "the table loss of a rule in a layer of a measured model; all layers together where none is named",
        nullable=names("layer"),
        engine="live",
        values="series",
        at={"layer": "layer"},
        facts=names("hot_experts mean_bits"),
        decisions={"precision": "rule"},
    ),
    "cxl_ndp_capacity": View(
        names("study hardware model_id hot_experts tier part placed_bytes tier_bytes"),
        names("study hardware model_id hot_experts tier part"),
        "what a part takes in HBM or in the NDP's memory",
        engine="cxl_ndp",
        values="series",
        at={"tier": "label", "part": "part"},
        facts=names("hot_experts"),
    ),
    "cxl_ndp_checks": View(
        names("study check value published unit bar_low bar_high how"),
        names("study check"),
        "a bar of the GPU-NDP model, what the paper's ratios force, or a number of the paper derived a second way",
        nullable=names("published bar_low bar_high"),
        engine="cxl_ndp",
        values="checks",
        at=places("check value published unit bar_low bar_high how"),
    ),
    "cxl_ndp_accuracy": View(
        names("model_id method task accuracy_pct"),
        names("model_id method task"),
        "Table 3 of the CXL GPU-NDP paper, as printed: no model of that size is run here",
        engine="cxl_ndp",
    ),
}
