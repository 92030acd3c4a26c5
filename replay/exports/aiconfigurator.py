"""A tape's mean request as an experiment of AIConfigurator: `aiconfigurator cli exp --yaml-path FILE` (JSON is YAML).

Keys are fields of its Task: ai-dynamo/aiconfigurator 0.12, aiconfigurator/cli/example.yaml. isl, osl: mean prompt and output
tokens; prefix: tokens of the prompt that a prefix cache of any size would hold; nextn, nextn_accepted: drafted, accepted a round.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl

from tokentape.replay.serving.workload import cached_tokens, from_table, sharing


def experiment(
    requests: pl.DataFrame, settings: Mapping[str, Any], rounds: pl.DataFrame | None, model: str, system: str, n_gpus: int
) -> dict[str, Any]:
    """The file's content. settings: of the tape; rounds: of a speculative one."""
    n_prompt, n_output = (requests[name].to_numpy() for name in ("n_prompt_tokens", "n_output_tokens"))
    fields: dict[str, Any] = {"serving_mode": "agg", "model_path": model, "system_name": system, "total_gpus": n_gpus}
    fields |= {"isl": round(float(n_prompt.mean())), "osl": round(float(n_output.mean()))}
    if "prefix_blocks" in requests.columns:
        rows = requests.sort("request_id").sort("arrival_s", maintain_order=True)
        shared = sharing(from_table(rows, ""), rows["prefix_blocks"].to_list(), settings)
        fields["prefix"] = round(float(cached_tokens(shared).mean()))
    if rounds is not None and (whole := rounds.filter(~pl.col("is_clipped"))).height:
        drafted, accepted = (float(np.mean(whole[name].to_numpy())) for name in ("n_drafted", "n_accepted"))
        fields |= {"nextn": round(drafted), "nextn_accepted": round(accepted, 4)}
    return {"tape": fields}
