"""Whole systems of policies on a tape, a machine and a workload."""

from tokentape.warehouse.columns import I64, TEXT, Column
from tokentape.warehouse.schema.runs import DECISIONS, OF_DECISIONS
from tokentape.warehouse.schema.table import View, names

_SYSTEM = Column(TEXT, "", "name of the system, or of its file; bound: what no choice of victims beats")

TABLES = {
    "system_runs": View(
        (
            *(*names("run_id study trace_id system"), *DECISIONS),
            *names("is_bound hardware hardware_sha256 profile workload batch seed n_requests expert_format budget_bytes asked"),
            *names("origin is_extrapolated outside_envelope assumed"),
        ),
        names("run_id"),
        "a system on a tape and machine: what decides in each slot, and the requests it served",
        nullable=(*DECISIONS,),
        own=OF_DECISIONS
        | {
            "system": _SYSTEM,
            "batch": Column(I64, "", "requests at once"),
            "n_requests": Column(I64, "", "requests served"),
            "workload": Column(TEXT, "", "which of the tape's requests, in which order, and how they arrive"),
        },
        engine="systems",
        values="",
        facts=names("batch seed n_requests budget_bytes"),
        decisions={slot: slot for slot in DECISIONS},
        run_id="run_id",
    ),
    "study_points": View(
        names("study series place panel line x system hardware trace_id seed result_id reason"),
        names("study place trace_id"),
        "a point of a study of systems: its run, or why there is none, and where in the study's figure it stands",
        nullable=names("result_id reason"),
        own={
            "system": _SYSTEM,
            "panel": Column(TEXT, "", "of the figure: what lines are drawn together"),
            "line": Column(TEXT, "", "of the figure: what points are drawn together"),
            "x": Column(TEXT, "", "of the figure: where along the axis, in the order of `place`"),
        },
        engine="systems",
        values="",
        facts=names("place seed"),
    ),
    "comparisons": View(
        names("comparison trace_id hardware place system seed result_id reason"),
        names("comparison trace_id hardware system seed"),
        "a cell of a comparison of systems: the run in it, or why there is none",
        nullable=names("result_id reason"),
        own={"system": _SYSTEM},
        engine="systems",
        values="",
        facts=names("place seed"),
    ),
}
