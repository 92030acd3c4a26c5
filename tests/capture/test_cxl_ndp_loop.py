"""Replicas inside a live model of every family: what each copy holds, who computes which token, and that nothing stays behind."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_families import MOE_CONFIGS

from tokentape.capture import models
from tokentape.capture.cxl_ndp.evaluate import CXLNDPRun, PlainText, on_text
from tokentape.capture.cxl_ndp.replicas import ReplicaExperts
from tokentape.capture.live.copies import experts_of, inputs_last
from tokentape.capture.live.loop import Request, Sampling, decode
from tokentape.capture.live.quality import evaluate_inside, requests_of
from tokentape.capture.live.routers import Placed
from tokentape.capture.live.slots import Inside
from tokentape.capture.losses import run as losses
from tokentape.capture.losses.experts import expert_of, matrices_of
from tokentape.capture.plan import CaptureSettings
from tokentape.capture.run import capture
from tokentape.policies.mixed import MixedPrecision
from tokentape.policies.placement import Seen
from tokentape.policies.replicas import WIDTHS, levels
from tokentape.warehouse.losses import loss_table
from tokentape.warehouse.tape import Store

WITH_GPTQ = ("Mixtral", "GptOss")
WINDOWS = {"prompt_tokens": 12, "decode_tokens": 20, "n_items": 3}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(" ".join(f"{i} goes to {i * i % 97}" for i in range(60)))
    return str(path)


@pytest.fixture(scope="module")
def made(model_folder, text, tmp_path_factory):
    """`made(family)` -> (loaded, tape of its losses, replicas rounded to nearest)."""
    store, found = Store(str(tmp_path_factory.mktemp("tape"))), {}

    def of(family):
        if family not in found:
            settings = CaptureSettings(model_folder(family), text, tables=("losses",), max_requests=3, max_prompt_tokens=40)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(losses, "METHODS", losses.METHODS if family in WITH_GPTQ else ("rtn",))  # most of the time
                tape = store.open(capture(settings, store))
            loaded = models.load(models.find(model_folder(family)))
            found[family] = (loaded, tape, ReplicaExperts(loaded, tape, "rtn"))
        return found[family]

    return of


def run_of(tape, method="rtn", **policy):
    made_of = loss_table(tape, method), tape.trace_id, method, None
    return CXLNDPRun(MixedPrecision(**{"hot": 4} | policy), *made_of, **WINDOWS)


def evaluate(loaded, experts, dataset, run, plain=None):
    return evaluate_inside(loaded, dataset, replace(run, experts=lambda _: experts, plain=plain))


# ---------------------------------------------------------------------------------------------------------------- replicas


@pytest.mark.parametrize("family", MOE_CONFIGS)
def test_a_copy_is_the_replica_of_its_width_and_copy_0_the_model(made, family):
    loaded, _, experts = made(family)
    places = [(module, name) for module in experts_of(loaded.model).values() for name in matrices_of(module).values()]
    whole = [inputs_last(module, name).clone() for module, name in places]
    with experts:
        for (module, name), w in zip(places, whole, strict=True):
            copies = inputs_last(module, name).reshape(5, *w.shape)
            assert torch.equal(copies[0], w)
            for bits in WIDTHS:
                for expert in (0, 5):
                    nearest = levels(w[expert].contiguous(), bits).nearest(w[expert].contiguous())
                    assert torch.allclose(copies[bits][expert], nearest, atol=1e-6)


@pytest.mark.parametrize("family", WITH_GPTQ)
def test_gptq_replicas_are_those_whose_losses_the_tape_holds(made, family):
    """Made anew from the tape's settings, they have the tape's mse on the tape's calibration rows."""
    from tokentape.capture.losses.run import calibrated
    from tokentape.capture.plan import plan, requests

    loaded, tape, _ = made(family)
    recorded = tape.manifest.settings
    settings = CaptureSettings(**recorded | {"tables": ("losses",)})
    recorded_losses = loss_table(tape, "gptq")
    prompts = requests(plan(settings), loaded.tokenizer)
    rows = {(c.layer, c.index): c for c in calibrated(loaded, prompts, [1], settings.seed)}
    experts = ReplicaExperts(loaded, tape, "gptq")
    with experts:
        module = experts_of(loaded.model)[1]
        for index in (2, 6):
            found = rows[1, index]
            x = found.rows.calibration
            for bits in WIDTHS:
                replica = expert_of(module, bits * 8 + index)
                mse = float((replica(x) - found.expert(x)).square().mean())
                assert mse == pytest.approx(recorded_losses[1, index, bits - 1], rel=1e-4)


def test_replicas_of_a_text_that_has_changed_are_refused(made, text):
    (loaded, tape, _), was = made("Mixtral"), Path(text).read_text()
    try:
        Path(text).write_text(f"not {was}")
        ReplicaExperts(loaded, tape, "rtn")
        with pytest.raises(ValueError, match=r"its calibration text, .*text.txt, has changed since; capture the losses again"):
            ReplicaExperts(loaded, tape, "gptq")
    finally:
        Path(text).write_text(was)


def test_losses_of_another_model_and_short_windows_are_refused(made):
    loaded, _, _ = made("Mixtral")
    _, tape, _ = made("GptOss")
    with pytest.raises(ValueError, match=r"not of this model; capture them with `tokentape capture --model .* --tables losses`"):
        ReplicaExperts(loaded, tape, "rtn")
    _, tape, _ = made("Qwen3Moe")
    with pytest.raises(ValueError, match="a prompt of at least 1 token and 2 to decode"):
        replace(run_of(tape), decode_tokens=1)


# -------------------------------------------------------------------------------------------------------------------- loop


@pytest.mark.parametrize("family", MOE_CONFIGS)
def test_windows_in_one_pass_are_requests_decoded_token_by_token(made, text, family):
    """The same perplexity, hot share and table loss, from the prompts' counts and from the loop's own."""
    loaded, tape, experts = made(family)
    run = run_of(tape, bits=2)
    plain = PlainText(loaded, text, run, 0)
    at_once = Placed(loaded.model, experts, run.policy, run.losses)
    scores = on_text(plain, at_once)
    one_by_one = Placed(loaded.model, experts, run.policy, run.losses)
    requests = requests_of(plain.ids.tolist(), run)
    with Inside(loaded.model, one_by_one) as inside:
        outcomes = decode(loaded.model, requests, Sampling(), frozenset(), loaded.pad_id, inside, with_nll=True)
    nll = torch.stack([o.nll for o in outcomes])[:, run.prompt_tokens :].mean()
    assert scores["perplexity"] == pytest.approx(math.exp(nll), rel=1e-3)
    assert one_by_one.measured == pytest.approx(at_once.measured, rel=1e-6)
    assert 0.2 < at_once.measured["hot_frac"] < 1
    assert scores["kl"] > 1e-4


@pytest.mark.parametrize("family", MOE_CONFIGS)
def test_without_hot_experts_and_prompts_the_model_is_a_model_of_replicas(made, text, family):
    loaded, tape, experts = made(family)
    plain = PlainText(loaded, text, run_of(tape), 0)
    loop = Placed(loaded.model, experts, MixedPrecision(0, 2, "uniform"), loss_table(tape, "rtn"))
    with torch.inference_mode(), Inside(loaded.model, loop):
        loop.place(plain.seen)
        loop.hold(slice(0, 3), first=0)
        found = loaded.model(input_ids=plain.ids).logits
    copy = models.load(loaded.source).model
    with torch.inference_mode():
        for module in experts_of(copy).values():
            for name in matrices_of(module).values():
                for w in inputs_last(module, name):
                    w.copy_(levels(w.contiguous(), 2).nearest(w.contiguous()))
        assert torch.allclose(found, copy(input_ids=plain.ids).logits, rtol=1e-3, atol=1e-3)


def test_at_full_precision_nothing_changes(made, text):
    loaded, tape, experts = made("Qwen3Moe")
    whole = PlainText(loaded, text, run_of(tape), 0)
    for policy in ({"rule": "full"}, {"hot": 8}):
        row = evaluate(loaded, experts, text, run_of(tape, **policy), plain=whole)
        assert (row["kl"], row["agreement_frac"], row["hot_frac"], row["table_loss"]) == (pytest.approx(0, abs=1e-6), 1, 1, 0)
        assert row["acceptance"] == pytest.approx(1, abs=1e-5)


def test_the_prompt_is_at_full_precision_and_no_later_token_is(made, text):
    """Windows that share their prompt and differ later: logits of the prompt are the model's, those after it are not."""
    loaded, tape, experts = made("Mixtral")
    plain = PlainText(loaded, text, run_of(tape), 0)
    loop = Placed(loaded.model, experts, MixedPrecision(0, 1, "uniform"), loss_table(tape, "rtn"))
    with torch.inference_mode():
        theirs = loaded.model(input_ids=plain.ids).logits
        with Inside(loaded.model, loop):
            loop.place(plain.seen)
            loop.hold(slice(0, 3), first=12)
            ours = loaded.model(input_ids=plain.ids).logits
    assert torch.allclose(ours[:, :12], theirs[:, :12], atol=1e-4)
    assert (ours[:, 12:] - theirs[:, 12:]).abs().amax(dim=-1).min() > 1e-3


def test_a_padded_batch_places_each_request_by_its_own_prompt(made):
    """Widths, hot shares and tokens are those of the requests one by one."""
    loaded, tape, experts = made("DeepseekV3")
    requests = [Request(i, tuple(range(3, 8 + 5 * i)), 6) for i in range(3)]
    found = []
    for batches in ([requests], [[request] for request in requests]):
        slot, outcomes, widths = Placed(loaded.model, experts, MixedPrecision(3, 2), loss_table(tape, "rtn")), [], []
        for batch in batches:
            with Inside(loaded.model, slot) as inside:
                outcomes += decode(loaded.model, batch, Sampling(), frozenset(), 0, inside)
                widths += slot.decided.tolist()
        found.append(([o.output_ids for o in outcomes], widths, slot.totals["hot"], slot.totals["selected"]))
    assert found[0] == found[1]


def test_batches_of_windows_do_not_matter_and_the_oracle_is_hit_most(made, text, monkeypatch):
    loaded, tape, experts = made("Olmoe")
    run = run_of(tape, placement="shuffled_prompts", bits=3)
    whole = evaluate(loaded, experts, text, run)
    monkeypatch.setattr("tokentape.capture.cxl_ndp.evaluate.LOGIT_ELEMENTS", 1)
    one_by_one = evaluate(loaded, experts, text, run)
    for name in ("perplexity", "kl", "agreement_frac", "hot_frac", "table_loss"):
        assert one_by_one[name] == pytest.approx(whole[name], rel=1e-4, abs=1e-6)
    loaded, tape, experts = made("Qwen2Moe")
    hits = {
        name: evaluate(loaded, experts, text, run_of(tape, bits=4, placement=name))["hot_frac"]
        for name in ("prefill_guided", "static_global", "random", "oracle")
    }
    assert max(hits, key=hits.get) == "oracle"


def test_items_are_answered_with_replicas_and_place_by_their_own_prompt(made, tmp_path):
    loaded, tape, experts = made("GraniteMoe")
    items = tmp_path / "items.jsonl"
    items.write_text("".join(f'{{"question": "What is {i} + {i}? ", "answer": "{2 * i}"}}\n' for i in range(5)))
    run = replace(run_of(tape), n_items=5)
    row = evaluate(loaded, experts, str(items), run)
    assert row["accuracy"] is not None
    assert row["n_items"] == 5
    assert 0 < row["hot_frac"] < 1
    with pytest.raises(ValueError, match="placement oracle sees more than a request's prompt: it runs on text only"):
        evaluate(loaded, experts, str(items), replace(run, policy=MixedPrecision(4, placement="oracle")))


def test_the_model_is_what_it_was(made, text):
    loaded, tape, experts = made("Phimoe")
    before = {name: id(p) for name, p in loaded.model.named_parameters()}
    run = run_of(tape)
    evaluate(loaded, experts, text, run)
    loop = Placed(loaded.model, experts, run.policy, run.losses)
    with pytest.raises(ValueError, match="9 hot experts of 8 per layer"), loop:
        Placed(loaded.model, experts, MixedPrecision(9), run.losses).place(PlainText(loaded, text, run, 0).seen)
    assert {name: id(p) for name, p in loaded.model.named_parameters()} == before
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in loaded.model.modules())


def test_seen_without_a_prompt_ties_to_the_first_experts():
    nothing = np.zeros((1, 1, 4), np.int64)
    widths = MixedPrecision(2, 1).widths(Seen(nothing, nothing * 1.0, nothing, nothing[0]), np.ones((1, 4, 4)))
    assert widths.tolist() == [[[0, 0, 1, 1]]]
