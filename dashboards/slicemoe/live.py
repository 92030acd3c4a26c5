"""The SliceMoE page's figures of what was measured inside a model: budgets, misses, schemes, fidelity."""

from __future__ import annotations

import polars as pl

from tokentape.dashboards.shell import Figure
from tokentape.dashboards.slicemoe import live_answers as answers
from tokentape.dashboards.slicemoe import live_charts as charts
from tokentape.dashboards.slicemoe import live_words as words
from tokentape.dashboards.slicemoe.charts import drawing_order
from tokentape.dashboards.slicemoe.replayed import SEEDS, STUDY

LOADED = "then tokentape load and tokentape site."
EVALUATE = (
    "tokentape evaluate --model embedded --datasets code --policy slicemoe --param pair=MAT42 --param precision=dbsc --param "
    "budget=hard --param budget.target_frac=0.05 --seeds 4 (again with precision=high-bit and low-bit, and with other targets)"
)
NO_LIVE = f"Nothing to draw: no sliced cache has run inside a model. Run: tokentape study slicemoe, or {EVALUATE}, {LOADED}"
NO_BUDGETS = f"Nothing to draw: no sliced cache was held to a budget in this model. Run: {EVALUATE}, {LOADED}"
NO_SPARING = (
    "Nothing to draw: no sliced cache has run inside this model without a budget. Run: tokentape evaluate --model embedded "
    f"--datasets code --policy slicemoe --cache 95% --param precision=dbsc --seeds 4 (again with precision=high-bit), {LOADED}"
)
NO_SCHEMES = f"Nothing to draw: no precision scheme is measured in a model. {STUDY}"
NO_FIDELITY = (
    "Nothing to draw: open and closed loop are not compared. Run: tokentape fidelity --model embedded --param router=cache_prior "
    f"--param precision=high-bit --cache 50%, {LOADED}"
)
TEXTS = "Seeds read different texts, so their bands are wide; configurations of one seed read the same."


def budgets(live: pl.DataFrame, start: dict[str, str]) -> Figure:
    """The other half of Fig. 2: quality and misses at the budgets whose energy slicemoe_replayed.flash shows."""
    held = live.filter((pl.col("budget") == "hard") & pl.col("target").is_not_null())
    return Figure(
        "budgets",
        "What do the same budgets cost inside a live model?",
        None if held.is_empty() else charts.budgets(start, drawing_order(held["configuration"]), words.panels(held)),
        {str(setup): answers.budgets(of) for (setup,), of in held.partition_by("setup", as_dict=True).items()},
        ("setup",),
        "Measured closed loop: where the budget is used up, a token keeps to experts that are cached. The model routes as it is, "
        f"without Cache-Prior. Dashed: misses as allowed. {TEXTS} {SEEDS}",
        NO_BUDGETS,
    )


def live(found: pl.DataFrame, start: dict[str, str]) -> Figure:
    drawn = found.filter("is_drawn")
    return Figure(
        "live",
        "What does a live model lose at which miss rate?",
        None if drawn.is_empty() else charts.live(start, drawing_order(drawn["configuration"]), words.panels(drawn)),
        {str(setup): answers.live(of) for (setup,), of in drawn.partition_by("setup", as_dict=True).items()},
        ("setup",),
        "Measured closed loop: the policy runs inside the model. Each point is a budget; ringed: none. Low-bit reads the prompt "
        "and decodes at the low width, AMAT the prompt at the high one; DBSC completes the experts that matter most. "
        f"{TEXTS} {SEEDS}",
        NO_LIVE,
    )


def sparing(found: pl.DataFrame, start: dict[str, str]) -> Figure:
    return Figure(
        "sparing",
        "Where does slicing lose?",
        None if found.is_empty() else charts.sparing(start),
        {str(setup): answers.sparing(of) for (setup,), of in found.partition_by("setup", as_dict=True).items()},
        ("setup",),
        "DBSC inside the model without a budget, against the high-bit cache of the same seed, which read the same text: right of "
        "zero it answers worse, and what it saves for that is the misses. It loses, or wins, where every seed does. "
        f"{SEEDS}",
        NO_SPARING,
    )


def schemes(found: pl.DataFrame, paper: pl.DataFrame) -> Figure:
    """The paper's Table 1."""
    pairs = found.filter(pl.col("pair") != "")["pair"].unique().sort().to_list()
    where = "" if found.is_empty() else f" ({found['model'][0]}, {found['dataset'][0]})"
    return Figure(
        "schemes",
        "What does each way of making low-bit experts cost a live model?",
        charts.schemes(pairs) if pairs else None,
        {"": answers.schemes(found, paper)} if pairs else {},
        (),
        f"Every routed expert at the low width of its pair, no cache{where}: MAT42 is 2 bits cut from 4, MAT84 4 from 8. Schemes "
        "at the low width are quantised there; AMAT and the others cut a high-bit expert. Not shifting the zero point is what "
        f"the paper warns of. {SEEDS}",
        NO_SCHEMES,
    )


def fidelity(found: pl.DataFrame) -> Figure:
    longest = 0.0 if found.is_empty() else max(found["low"].abs().max(), found["high"].abs().max())
    return Figure(
        "fidelity",
        "How far is open-loop replay from the closed loop?",
        None if found.is_empty() else charts.fidelity(longest or 0.01),
        {} if found.is_empty() else {"": answers.fidelity(found)},
        (),
        "A rerouted token changes what the model does next; a replay of the unmodified model's scores cannot know that. Same "
        f"policy, same text. Right of zero the replay is too high. Words: open loop, closed loop. {SEEDS}",
        NO_FIDELITY,
    )
