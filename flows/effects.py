"""Options that do nothing beside others: what was typed for nothing is refused, not dropped (cli.Command asks).

Only what stands on the command line counts: defaults, and --store from the environment, are no wish.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

Typed = Mapping[str, Any]
ASKING = ("store", "database", "format", "out")  # of a query
UNPROMPTED = {"static_global", "random", "oracle", "never", "always"}  # placements
UNSCORED = {"full", "streaming", "random", "quest", "oracle"}  # KV policies
GREEDY = "at --temperature 0, which draws nothing"
MADE_HERE = ("code", "docs", "math", "recall")  # data sets without splits and fields


@dataclass(frozen=True)
class Idle:
    """Options that do nothing where `holds` of all values, and the words for it."""

    options: tuple[str, ...]
    holds: Callable[[Typed], bool]
    where: str


def _all_of(name: str, *ends: str) -> bool:
    """Whether every part of a data set is made here, or a file that ends so."""
    return all(part.strip() in MADE_HERE or part.lower().strip().endswith(ends) for part in name.split("+"))


DATA = (
    Idle(("split", "subset"), lambda of: _all_of(of["dataset"], ".jsonl", ".parquet", ".txt"), "on data that is not the hub's"),
    Idle(("field",), lambda of: _all_of(of["dataset"], ".txt"), "on data without fields"),
)
BESIDE_DATABASE = (Idle(("store",), lambda of: of["database"] is not None, "with --database"),)
BESIDE_JSON = (Idle(("format",), lambda of: of["as_json"], "with --json"),)
IN_BYTES = (Idle(("expert_format",), lambda of: of["capacity"].strip()[-1:] not in "bB", "on a --capacity that is not in bytes"),)
IDLE: dict[str, tuple[Idle, ...]] = {
    "capture": (
        Idle(
            ("draft_depth", "draft_width", "verify_nodes", "pool", "pool_frac", "draft_bits", "draft_scheme", "draft_static"),
            lambda of: of["draft"] is None,
            "without --draft",
        ),
        Idle(("pool", "pool_frac"), lambda of: of["draft"] not in (None, "elastic"), "on a drafter other than elastic"),
        Idle(
            ("draft_bits", "draft_scheme", "draft_static"),
            lambda of: str(of["draft"]).partition(":")[0] in ("model", "ngram", "eagle"),
            "on a drafter that is no narrow copy of the model",
        ),
        Idle(("draft_scheme", "draft_static"), lambda of: of["draft_bits"] == 0, "at --draft-bits 0, the weights as loaded"),
        Idle(("temperature", "top_p", "top_k"), lambda of: of["teacher_forced"], "with --teacher-forced, which samples nothing"),
        Idle(("top_p", "top_k"), lambda of: of["temperature"] == 0, GREEDY),
        Idle(("seed",), lambda of: not (of["temperature"] or "losses" in of["tables"] or of["pool"] == "random"), GREEDY),
        Idle(("attention",), lambda of: "attention" not in of["tables"], "where --tables has no attention"),
        Idle(
            ("max_new_tokens", "temperature", "top_p", "top_k"),
            lambda of: "losses" in of["tables"],
            "with --tables losses, of prompts alone",
        ),
        *DATA,
        Idle(("device",), lambda of: of["device_map"] is not None, "with --device-map"),
    ),
    "record": (Idle(("seed",), lambda of: of["temperature"] == 0, GREEDY), *DATA),
    "replay": (
        Idle(
            ("policy", "capacity", "scope", "param", "lookup", "recency", "prefill", "start", "overflow", "fetching", "seed"),
            lambda of: of["system"] is not None,
            "with --system, which says it by slot (--set)",
        ),
    ),
    "evaluate": (
        Idle(("param", "scheme", "seeds"), lambda of: of["policy"] is of["system"] is None, "without --policy or --system"),
        Idle(("cache",), lambda of: of["policy"] is None, "without --policy"),
    ),
    "study": (
        Idle(("runner", "workers", "live", "store", "dry_run"), lambda of: of["name"] is None, "without a study"),
        Idle(("runner", "workers", "live"), lambda of: of["dry_run"], "with --dry-run"),
    ),
    "query": (Idle(ASKING, lambda of: of["name"] is None, "without a query"), *BESIDE_DATABASE, *BESIDE_JSON),
    "sql": (
        Idle(("store",), lambda of: of["database"] is not None and "tape." not in of["statement"].lower(), "with --database"),
        *BESIDE_JSON,
    ),
    "models quantise": BESIDE_JSON,
    "site": BESIDE_DATABASE,
    "plot": (Idle(("store", "database"), lambda of: of["figure"] is None, "without a figure"), *BESIDE_DATABASE),
    "check": (Idle(("store",), lambda of: of["folder"] is not None, "beside STORE, which says the same"),),
    "step gpu": (
        Idle(("fits",), lambda of: of["roofline"], "with --roofline, which leaves constants out"),
        Idle(("context",), lambda of: of["batch"] == 0, "at --batch 0, where nothing decodes"),
    ),
    "step elmoe3d": (
        Idle(("alpha", "accepted_form"), lambda of: of["accepted"] is not None, "with --accepted, which says what alpha would"),
        Idle(("beta",), lambda of: of["hit_model"] == "che", "with --hit-model che, which goes by the exponent"),
    ),
    "step cxl_ndp": (
        Idle(
            ("bits", "rule", "fixed_macs"), lambda of: of["system"] not in ("all", "ours"), "on systems that move whole experts"
        ),
        Idle(
            ("alpha", "placement"),
            lambda of: of["system"] in ("monde", "monde-never", "monde-always"),
            "on a migration that starts with no expert on the GPU",
        ),
        Idle(("rule", "fixed_macs"), lambda of: not of["bits"].replace("16", "").strip(" ,"), "at 16 bits, experts as they are"),
        Idle(("overlap",), lambda of: of["system"] in ("ours", "monde", "monde-never"), "where none move, or beside in any case"),
        Idle(("profile",), lambda of: of["fit"] is not None, "with --fit, which makes one"),
    ),
    "decide place": (
        Idle(("beta",), lambda of: "ema" not in (of["placements"] or "ema"), "where no placement is ema"),
        Idle(("seed",), lambda of: "random" not in (of["placements"] or "random"), "where no placement is random"),
        Idle(
            ("alpha", "weight_source"),
            lambda of: {name.strip() for name in (of["placements"] or "ema").split(",")} <= UNPROMPTED,
            "where no placement goes by the prompts",
        ),
        *IN_BYTES,
    ),
    "decide kv": (Idle(("renorm",), lambda of: of["policy"] in UNSCORED, "on a policy that goes by no scores"),),
    "export kt": IN_BYTES,
    "decide precision": (Idle(("alpha", "capacity"), lambda of: of["routing"] is None, "without --routing"),),
    "watch": (Idle(("webhook", "webhook_anywhere"), lambda of: not of["alerts"], "without --alert"),),
    "import chats": DATA[:1],
    "import requests": (
        Idle(("arrival", "prompt", "output"), lambda of: of["form"] not in (None, "csv"), "on a form with columns of its own"),
    ),
    "calibrate kelle": (Idle(("out",), lambda of: of["trace"] is None, "without a TRACE, of which nothing is counted"),),
    "calibrate cxl_ndp": (Idle(("out",), lambda of: of["check"] is not None, "with --check, which fits nothing"),),
    "calibrate serving": (
        Idle(("out",), lambda of: of["check"] is not None or of["cross_validate"], "with --check or --cross-validate"),
        Idle(("mode",), lambda of: bool(of["paths"]), "with PATH, whose own means are fitted to"),
    ),
    "calibrate elmoe3d": (Idle(("out",), lambda of: of["check"] is not None, "with --check, which fits nothing"),),
}


def without_effect(command: str, given: Collection[str], values: Typed) -> str | None:
    """What to say of the first option of `given` (names of parameters) that does nothing; None where each does something."""
    for idle in IDLE.get(command, ()):
        for option in idle.options:
            if option in given and idle.holds(values):
                return f"--{option.replace('_', '-')} has no effect {idle.where}; leave it out"
    return None
