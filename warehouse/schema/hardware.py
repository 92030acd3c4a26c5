"""Machines number by number, operations in seconds, and how wrong the models are."""

from tokentape.warehouse.schema.table import Table, View

TABLES = {
    "machines": Table(
        ("hardware", "hardware_sha256", "title", "engine", "dtype", "fast_tier", "backing_tier", "n_devices"),
        ("hardware",),
        "a machine: shipped, or used by a replay",
    ),
    "hardware_numbers": Table(
        ("hardware", "key", "value", "low", "high", "unit", "source", "is_assumed"),
        ("hardware", "key"),
        "a number of a machine's file, with its range and source",
    ),
    "operations": View(
        ("step_id", "title", "hardware", "place", "operation", "resource", "op_layer", "start_s", "seconds", "bytes", "ops"),
        ("step_id", "place"),
        "a named operation of a step on the clock",
        engine="hardware",
        values="busy",
        at={
            "place": "place",
            "operation": "operation",
            "resource": "resource",
            "op_layer": "op_layer",
            "start_s": "start_s",
            "seconds": "seconds",
            "bytes": "bytes",
            "ops": "ops",
        },
    ),
    "validation": View(
        ("check", "device", "framework", "version", "operator", "split", "n", "mape_frac", "median_frac", "p95_frac"),
        ("check", "device", "framework", "version", "operator", "split"),
        "the error of a cost model against measurements",
        engine="hardware",
        facts=("n",),
    ),
    "validation_points": View(
        ("check", "device", "framework", "version", "operator", "split", "regime", "shape", "measured", "predicted", "unit"),
        ("check", "device", "framework", "version", "operator", "split", "shape", "measured"),
        "one measurement and the model's value for it; a sample where there are many",
        engine="hardware",
    ),
}
