"""Machines number by number, operations in seconds, and how wrong the models are."""

from tokentape.warehouse.schema.table import Table, View, names, places

TABLES = {
    "machines": Table(
        names("hardware hardware_sha256 title engine dtype fast_tier backing_tier n_devices"),
        names("hardware"),
        "a machine: shipped, or used by a replay",
    ),
    "hardware_numbers": Table(
        names("hardware key value low high unit source is_assumed"),
        names("hardware key"),
        "a number of a machine's file, with its range and source",
    ),
    "operations": View(
        names("step_id title hardware place operation resource op_layer start_s seconds bytes ops"),
        names("step_id place"),
        "a named operation of a step on the clock",
        engine="hardware",
        values="busy",
        at=places("place operation resource op_layer start_s seconds bytes ops"),
    ),
    "validation": View(
        names("check device framework version operator split n mape_frac median_frac p95_frac"),
        names("check device framework version operator split"),
        "the error of a cost model against measurements",
        engine="hardware",
        facts=names("n"),
    ),
    "validation_points": View(
        names("check device framework version operator split regime shape measured predicted unit"),
        names("check device framework version operator split shape measured"),
        "one measurement and the model's value for it; a sample where there are many",
        engine="hardware",
    ),
}
