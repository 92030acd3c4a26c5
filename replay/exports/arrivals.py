"""A tape's requests as traces of arrivals and lengths that other simulators and load generators take, one JSON object per line.

llmservingsim   input_toks, output_toks, arrival_time_ns, and input_tok_ids where the tape has the prompt's tokens
                (casys-kaist/LLMServingSim, request traces)
mooncake        timestamp (ms), input_length, output_length, hash_ids, one per 512 prompt tokens (kvcache-ai/Mooncake,
                FAST25-release/traces; also aiperf and Dynamo): of shorter blocks the last one's; without any all different
"""

import json
from itertools import count

import polars as pl

FORMS = ("llmservingsim", "mooncake")
BLOCK_TOKENS = 512


def lines(form: str, requests: pl.DataFrame, prompts: dict[int, list[int]], block_tokens: int | None) -> str:
    """The file's text, in order of arrival; prompts: token ids of requests that have them; block_tokens: of the prefix blocks."""
    fresh, written = count(), list[str]()
    step = 0 if not block_tokens or BLOCK_TOKENS % block_tokens else BLOCK_TOKENS // block_tokens
    for row in requests.sort("arrival_s", "request_id").to_dicts():
        n_prompt, n_output, arrival_s = row["n_prompt_tokens"], row["n_output_tokens"], row["arrival_s"]
        if form == "llmservingsim":
            known = {"input_tok_ids": prompts[row["request_id"]]} if row["request_id"] in prompts else {}
            line = {"input_toks": n_prompt, "output_toks": n_output, "arrival_time_ns": round(1e9 * arrival_s), **known}
        else:
            held = (row.get("prefix_blocks") or []) if step else []
            blocks = [held[min(i + step, len(held)) - 1] for i in range(0, len(held), step or 1)]
            blocks = blocks or [next(fresh) for _ in range(-(-n_prompt // BLOCK_TOKENS))]
            line = {"timestamp": round(1e3 * arrival_s), "input_length": n_prompt, "output_length": n_output, "hash_ids": blocks}
        written.append(json.dumps(line) + "\n")
    return "".join(written)
