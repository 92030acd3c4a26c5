"""The serving iteration in the paper's profile against rows that the cost model of before answered.

Where several KV heads lie on a device, and reading keys and values takes longer than multiplying them with drafts: of fewer heads
than devices it counted no copies, and of the queries of a round only the drafts'.
"""

import json
from pathlib import Path

import numpy as np
from serving_models import PLACES as FITTED_AND_MEASURED

from tokentape.hw import profile
from tokentape.hw.spec import load
from tokentape.policies.serving import Speculation
from tokentape.replay.serving import iteration as entries
from tokentape.replay.serving.coverage import FixedCoverage
from tokentape.warehouse import models

GOLDEN = [json.loads(line) for line in (Path(__file__).parent / "golden" / "serving_iterations.jsonl").read_text().splitlines()]
PLACES = {
    **FITTED_AND_MEASURED,
    "dense_bandwidth_frac": (("lane.dense", "bytes_frac"), ("lane.head", "bytes_frac")),
    "dense_ops_frac": (("lane.dense", "ops_frac"),),
    "link_frac": (("lane.comm", "bytes_frac"),),
    "decode_iteration_s": (("lane.decode_step", "each_s"),),
    "j_per_op": (("energy", "j_per_op"),),
}


def answered(row: dict) -> list[float]:
    """Seconds by part, bytes of experts, joules of bytes and of operations."""
    given = ((f"{table}.{key}", name) for name, places in PLACES.items() for table, key in places)
    numbers = {place: row["constants"][name] for place, name in given if name in row["constants"]}
    geometry, machine = models.load(row["model"]).geometry, load(row["machine"])
    drafts = Speculation(row["n_nodes"], (), row["draft_s"]) if row["n_nodes"] else None
    made = profile.with_values("layered_prefill", numbers)
    costs = entries.iteration_costs(geometry, machine, FixedCoverage(), made, row["expert_format"], speculation=drafts)
    carried = {entries.PROMPT: row["n_prefill"], entries.PROMPTS: 1, entries.HELD: 0, entries.HELD_W: 0}
    carried |= {entries.PAIRS: row["pairs"][0], entries.PAIRS_W: row["pairs"][1]}
    carried |= {entries.DECODES: row["n_decode"], entries.NODES: row["n_nodes"]}
    carried |= {entries.KEYS: row["keys"][0], entries.KEYS_W: row["keys"][1]}
    found = costs.cost(carried, np.array(row["in_group"]), np.array(row["only"]), np.array(row["mixed"]))
    found[4] += row["draft_s"] if row["n_decode"] else 0.0
    return found.tolist()


def test_every_golden_row() -> None:
    for row in GOLDEN:
        *wanted, moved, ops = row["cost"]
        joules = row["constants"]["j_per_byte"] * moved, row["constants"]["j_per_op"] * ops
        np.testing.assert_allclose(answered(row), [*wanted, *joules], rtol=1e-9, err_msg=str(row))
