"""vLLM's per-request speculative metrics become rounds; what does not add up is refused by name."""

import copy
import json
from pathlib import Path

import pytest

from tokentape.capture.importers.acceptance import import_acceptance
from tokentape.flows.tapes import acceptance_of
from tokentape.warehouse.tape import Store

# The example of vLLM's pull request 48915, in its two forms.
SUMMARY = json.loads((Path(__file__).parent / "vllm_summary.json").read_text())
DETAILED = copy.deepcopy(SUMMARY)
DETAILED["metrics"]["speculative_decoding"] |= {
    "per_step_accepted": [3, *[0] * 39, 1, 3, 3],
    "per_step_drafted": [3] * 43,
}
NULLS = copy.deepcopy(SUMMARY)
NULLS["metrics"]["speculative_decoding"] |= {"per_step_accepted": None, "per_step_drafted": None}


def imported(tmp_path, text):
    file = tmp_path / "responses.jsonl"
    file.write_text(text)
    store = Store(str(tmp_path / "tape"))
    return store.open(import_acceptance(file, store))


@pytest.mark.parametrize("body", [SUMMARY, NULLS, DETAILED], ids=["summary", "summary with nulls", "detailed"])
def test_the_engines_own_means_come_out(tmp_path, body):
    found = acceptance_of(imported(tmp_path, json.dumps(body)))
    stats = body["metrics"]["speculative_decoding"]
    assert found["tau_committed"] == pytest.approx(stats["mean_acceptance_length"])
    assert [found[f"accepted_{j}"] * 43 for j in range(4)] == pytest.approx(stats["acceptance_histogram"])
    assert found["alpha_1_marginal"] == pytest.approx(4 / 43)
    assert found["alpha_2_conditional"] == pytest.approx(3 / 4)


def test_order_is_kept_or_said_to_be_unknown_and_shorter_drafts_are_flagged(tmp_path):
    tape = imported(tmp_path, json.dumps(DETAILED))
    assert tape.read("rounds")["n_accepted"].to_list() == DETAILED["metrics"]["speculative_decoding"]["per_step_accepted"]
    assert tape.manifest.flags == {}
    assert imported(tmp_path, json.dumps(SUMMARY)).manifest.flags["rounds_unordered"] == {"requests": 1, "of": 1}
    body = copy.deepcopy(SUMMARY)
    body["metrics"]["speculative_decoding"]["num_draft_tokens"] = 120
    assert "drafts_shorter_than_stated" in imported(tmp_path, json.dumps(body)).manifest.flags


def test_lists_lines_and_chunks_of_a_stream(tmp_path):
    lines = "\n".join(json.dumps(b) for b in ({"data": SUMMARY}, {"choices": []}, DETAILED))
    as_list = json.dumps([SUMMARY, DETAILED])
    for text in (lines, as_list, json.dumps(SUMMARY, indent=1)):
        tape = imported(tmp_path, text)
        n = tape.manifest.rows["requests"]
        assert n == (1 if "\n " in text else 2)
        assert tape.read("requests")["n_output_tokens"].to_list() == [53] * n
