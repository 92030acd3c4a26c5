"""Points of bit-sliced expert caching."""

from tokentape.warehouse.schema.table import View, names

TABLES = {
    "slicemoe_points": View(
        names(
            "study trace_id model_id seed hardware capacity_bytes pair configuration tau router warmup budget strength "
            "target_frac quality_frac high_bit_miss_frac critical_per_layer decode_step_s decode_energy_j_per_token "
            "flash_energy_frac early_step_s early_energy_j_per_token"
        ),
        names("study trace_id hardware capacity_bytes pair configuration tau router warmup budget strength"),
        "a replay of a sliced system in a study's sweep",
        nullable=names("tau target_frac critical_per_layer"),
        engine="slicemoe",
        facts=names("tau target_frac strength capacity_bytes"),
        decisions={"residency": "warmup", "route": "router", "precision": "configuration"},
    ),
    "warmup_points": View(
        names(
            "study trace_id model_id seed hardware capacity_bytes warmup budget strength window_steps decode_step_s "
            "decode_energy_j_per_token"
        ),
        names("study trace_id hardware capacity_bytes warmup budget strength window_steps"),
        "the first steps of every generation of a sliced replay, by what the cache held at first",
        engine="slicemoe",
        facts=names("strength window_steps capacity_bytes"),
        decisions={"residency": "warmup"},
    ),
    "operating_points": View(
        names(
            "study claim method model_id hardware origin tau energy_gain speed_gain lsb_frac baseline_miss_frac ours_miss_frac"
        ),
        names("study claim model_id hardware origin lsb_frac"),
        "the two miss rates that a gain in energy and one in speed imply together",
        nullable=names("method tau"),
        engine="slicemoe",
        facts=names("lsb_frac tau"),
    ),
}
