"""A policy inside a live model: one that asks for nothing changes nothing, one that reroutes does so in the family's scores."""

import json
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
import torch
from refusing import refuses
from tiny_families import MOE_CONFIGS, build, generate, state_of, with_experts
from torch import nn

from tokentape.capture import models
from tokentape.capture.blocks import find_blocks
from tokentape.capture.families import FAMILIES, score_rule
from tokentape.capture.live.copies import SlicedExperts
from tokentape.capture.live.loop import Request, Sampling, decode
from tokentape.capture.live.quality import evaluate_inside
from tokentape.capture.live.routers import FIELDS, Sliced, capacity_of, slices_of
from tokentape.capture.live.slots import Inside
from tokentape.capture.live.system import SystemTried, both_loops
from tokentape.capture.routing import RoutingCapture
from tokentape.capture.run import CaptureSettings, capture
from tokentape.policies.matryoshka import MAT, approximate
from tokentape.policies.quantise import dequantise, quantise
from tokentape.policies.scoring import gates, ranking, weights_of
from tokentape.policies.sliced import BUDGETS, PRECISIONS, ROUTERS, WARMUPS, Controller, SlicedCache, SliceMoE
from tokentape.policies.slots import System
from tokentape.replay.capacity import bytes_of
from tokentape.replay.scores import scores_from_table
from tokentape.replay.system.recorded import recorded as recorded_of
from tokentape.replay.system.slicemoe import served
from tokentape.replay.trace import trace_from_tables
from tokentape.warehouse.tables import conform
from tokentape.warehouse.tape import Store

HIGH, DBSC = PRECISIONS["high-bit"](), PRECISIONS["dbsc"]()
GREEDY = Sampling()
REROUTABLE = [name for name in MOE_CONFIGS if name != "Phimoe"]  # sparsemixer weighs nothing but the model's own choice
SYSTEMS = ("lru", "dbsc", "cache_prior", "max_rank", "cumsum", "buddy")


@pytest.fixture(scope="module")
def plain(tiny):
    """Of every model as it is."""
    return {name: generate(model, requests()) for name, model in tiny.items()}


def requests(lengths=(9, 4, 12), new=(6, 9, 3), vocabulary=97):
    """Prompts of unequal length that end at different steps."""
    rng = np.random.default_rng(5)
    prompts = [tuple(rng.integers(3, vocabulary, n).tolist()) for n in lengths]
    return [Request(i, prompt, n) for i, (prompt, n) in enumerate(zip(prompts, new, strict=True))]


def n_layers(model):
    return len(find_blocks(model))


# -------------------------------------------------------------------------------------------------- policies of no strength


def without_strength(name, model):
    layers, k = n_layers(model), next(iter(find_blocks(model).values())).top_k
    return {
        "lru": SliceMoE(precision=HIGH),
        "dbsc": SliceMoE(precision=DBSC),
        "cache_prior": SliceMoE(ROUTERS["cache_prior"](0.0), precision=HIGH),
        "max_rank": SliceMoE(ROUTERS["max_rank"](k)),
        "cumsum": SliceMoE(ROUTERS["cumsum"](0.0)),
        "buddy": SliceMoE(ROUTERS["buddy"](np.ones((layers, 8, 8), np.float32), threshold=1.5)),
    }[name]


@pytest.mark.parametrize(
    ("name", "system"),
    [
        pytest.param(name, system, marks=[pytest.mark.slow] * ((i + n) % 3 != 0))
        for i, system in enumerate(SYSTEMS)
        for n, name in enumerate(MOE_CONFIGS if system in ("lru", "dbsc") else REROUTABLE)
    ],
)
def test_a_policy_without_strength_leaves_every_logit_bit_equal(tiny, plain, name, system):
    model, batch, (plain_ids, plain_logits) = tiny[name], requests(), plain[name]
    before = state_of(model)
    policy = without_strength(system, model)
    ids, logits = generate(model, batch, Sliced(model, policy, capacity_of(model, policy.cache, 0.4), scheme=None))
    assert ids == plain_ids
    assert len(logits) == len(plain_logits) == max(r.max_new_tokens for r in batch)
    assert torch.equal(logits, plain_logits)
    assert state_of(model) == before


@pytest.mark.parametrize("name", MOE_CONFIGS)
def test_critical_experts_all_at_high_precision_are_the_quantised_model(tiny, name):
    """tau below 0 asks for every LSB slice: the plain model with its experts at the high width."""
    model, batch = tiny[name], requests()
    policy = SliceMoE(precision=PRECISIONS["dbsc"](tau=-1.0))
    ids, logits = generate(model, batch, Sliced(model, policy, capacity_of(model, policy.cache, 0.4)))
    plain_ids, plain = generate(with_experts(name, lambda w: dequantise(quantise(w, 8))), batch)
    assert ids == plain_ids
    assert torch.allclose(logits, plain, rtol=1e-4, atol=1e-4)


def test_low_bit_is_low_from_the_prompt_on_and_amat_from_the_first_decoded_token(tiny):
    model, batch = tiny["Qwen3Moe"], [Request(0, tuple(range(3, 12)), 3)]
    low = generate(with_experts("Qwen3Moe", lambda w: approximate(w, MAT(4, 2))), batch)[1]
    found = {}
    for name in ("low-bit", "amat", "high-bit"):
        policy = SliceMoE(precision=PRECISIONS[name](), cache=SlicedCache(4, 2))
        found[name] = generate(model, batch, Sliced(model, policy, capacity_of(model, policy.cache, 1.0)))[1]
    assert torch.allclose(found["low-bit"][0], low[0], atol=1e-4)
    assert torch.equal(found["amat"][0], found["high-bit"][0])
    assert not torch.allclose(found["amat"][0], low[0], atol=1e-2)
    assert not torch.allclose(found["amat"][1], found["high-bit"][1], atol=1e-3)


@pytest.mark.parametrize("name", REROUTABLE)
def test_an_error_in_the_middle_leaves_the_model_as_it_was(tiny, plain, name):
    model, batch = tiny[name], requests()
    before = state_of(model)
    policy = SliceMoE(ROUTERS["cache_prior"](1.0), cache=SlicedCache(4, 2))

    def stop(done):
        if done.kind == "decode":
            raise KeyError("stop")

    slot = Sliced(model, policy, capacity_of(model, policy.cache, 0.5))
    with pytest.raises(KeyError), Inside(model, slot) as inside:
        decode(model, batch, GREEDY, frozenset(), 0, inside, on_pass=stop)
    assert state_of(model) == before
    assert torch.equal(generate(model, batch)[1], plain[name][1])


def test_a_loop_that_has_not_begun_watches_only(tiny, plain):
    model, batch = tiny["Qwen3Moe"], requests()
    policy = SliceMoE(ROUTERS["cache_prior"](1.0), precision=HIGH)
    inside = Inside(model, Sliced(model, policy, capacity_of(model, policy.cache, 0.5), scheme=None))
    for _ in range(2):  # a second time, with nothing left of the first
        with inside:
            assert torch.equal(generate(model, batch)[1], plain["Qwen3Moe"][1])
            decode(model, batch, GREEDY, frozenset(), 0, inside)


# ------------------------------------------------------------------------------------------------------------- rerouting


def recorded(model, batch, slot):
    """Every pass's routing with the slot inside: scores (L, n, E), weights and ids (L, n, k) as applied."""
    steps = []
    with Inside(model, slot) as inside, RoutingCapture(model) as routing:
        decode(model, batch, GREEDY, frozenset(), 0, inside, on_pass=lambda done: steps.append(routing.take()))
    return steps


@pytest.mark.parametrize("name", REROUTABLE)
def test_rerouting_happens_in_score_space_with_weights_of_unmodified_scores(tiny, name):
    """Against Cache-Prior written out: ids from biased scores within the family's groups, weights as the family gives them."""
    model, batch = tiny[name], [Request(0, tuple(range(3, 15)), 24)]
    policy = SliceMoE(ROUTERS["cache_prior"](0.5, protect=1), precision=HIGH)
    loop = Sliced(model, policy, capacity_of(model, policy.cache, 0.5), scheme=None)
    steps = recorded(model, batch, loop)
    rule, params = score_rule(loop.model, loop.top_k)
    oracle = Controller(policy, n_layers(model), 8, loop.top_k, *loop.slices, loop.capacity_bytes)
    spread, resident = np.zeros((n_layers(model), 2)), None
    n_rerouted = 0
    for t, step in enumerate(steps):
        for i, layer in enumerate(loop.blocks):
            scores = step.scores[i].double().numpy()
            values = ranking(step.scores[i].numpy(), rule, params, layer).astype(np.float32)
            dense = gates(step.scores[i].numpy(), rule).astype(np.float32)
            natural = np.argsort(-values, axis=1, kind="stable")[:, : loop.top_k]
            ids = step.ids[i].numpy()
            rows = np.full(len(values), i, np.int32)
            if t == 0:
                assert np.array_equal(np.sort(ids, axis=1), np.sort(natural, axis=1))  # the prompt goes the natural way
                oracle.prefill(rows, values, dense)
                continue
            resident = oracle.msb_resident[i].copy()
            liked = resident.copy()
            liked[natural[0, :1]] = True
            finite = values[0][np.isfinite(values[0])]
            spread[i] += finite.max() - finite.min(), 1
            bonus = np.float32(0.5 * spread[i, 0] / spread[i, 1])
            wanted = np.argsort(-(values[0] + bonus * liked), kind="stable")[: loop.top_k]
            assert set(ids[0].tolist()) == set(wanted.tolist())
            assert np.isfinite(values[0, ids[0]]).all()  # of the groups that compete
            assert (step.weights[i] > 0).all()
            expected = weights_of(scores, ids, rule, params)
            np.testing.assert_allclose(step.weights[i].double().numpy(), expected, rtol=1e-5, atol=1e-7)
            n_rerouted += len(set(ids[0].tolist()) - set(natural[0].tolist()))
            oracle.decode(rows, values, dense)
        if t == 0:
            oracle.end_prefill()
    assert n_rerouted >= 3
    assert 0 < loop.totals["rerouted"] <= n_rerouted


@pytest.mark.parametrize("name", MOE_CONFIGS)
def test_changed_logits_alone_change_nothing(tiny, plain, name):
    """Why a policy must put its choice in place of the router's: no block reads the logits again."""
    model, batch = tiny[name], requests()
    handles = [
        block.router.register_forward_hook(lambda module, args, output: (torch.full_like(output[0], -1e6), *output[1:]))
        for block in find_blocks(model).values()
    ]
    try:
        masked = generate(model, batch)[1]
    finally:
        for handle in handles:
            handle.remove()
    assert torch.equal(masked, plain[name][1])


@pytest.mark.parametrize("name", REROUTABLE)
def test_a_hard_target_of_nothing_reads_nothing(tiny, name):
    model = tiny[name]
    policy = SliceMoE(precision=HIGH, budget=BUDGETS["hard"](0.0), free_steps=2)
    loop = Sliced(model, policy, capacity_of(model, policy.cache, 0.9), scheme=None)
    generate(model, [Request(0, tuple(range(3, 27)), 16)], loop)
    # The first missing expert is still charged; from then on the layers that hold top_k experts route to those.
    assert loop.totals["accesses"] == 13 * n_layers(model) * loop.top_k
    assert loop.totals["misses"] <= loop.top_k


# ---------------------------------------------------------------------------------------------------------------- counting


def test_a_batch_counts_what_its_requests_count_alone(tiny):
    model, batch = tiny["Qwen3Moe"], requests()
    policy = SliceMoE(ROUTERS["cache_prior"](0.5), cache=SlicedCache(4, 2), free_steps=1)
    capacity = capacity_of(model, policy.cache, 0.4)
    together = Sliced(model, policy, capacity)
    ids = generate(model, batch, together)[0]
    alone = Counter()
    for i, request in enumerate(batch):
        loop = Sliced(model, policy, capacity)
        assert generate(model, [request], loop)[0] == [ids[i]]
        alone += Counter(loop.totals)
    assert {k: v for k, v in together.totals.items() if v} == pytest.approx(dict(alone), rel=1e-5)
    decoded = sum(r.max_new_tokens - 1 - policy.free_steps for r in batch)  # the last token is never an input
    assert together.totals["tokens"] == decoded
    assert together.totals["accesses"] == decoded * 3 * 3
    assert 0 < together.miss_frac < 1


def open_loop(model, batch, outputs, loop):
    """FIELDS from a Controller over the scores that the unmodified model has for the same tokens."""
    totals = dict.fromkeys(FIELDS, 0)
    for request, output in zip(batch, outputs, strict=True):
        fed = [*request.prompt_ids, *output[:-1]]
        with torch.inference_mode(), RoutingCapture(model) as routing:
            model(input_ids=torch.tensor([fed]))
            step = routing.take()
        k, layers = step.ids.shape[2], list(loop.blocks)
        size = (len(layers), loop.n_experts, k, *loop.slices, loop.capacity_bytes)
        controller = Controller(loop.system, *size, first=request.request_id)
        scores = step.scores.float().numpy()
        values = np.stack([ranking(scores[i], loop.rule, loop.params, layer) for i, layer in enumerate(layers)])
        dense = gates(scores, loop.rule)
        n_prompt = len(request.prompt_ids)
        for i in range(len(layers)):
            controller.prefill(np.full(n_prompt, i, np.int32), values[i, :n_prompt], dense[i, :n_prompt])
        controller.end_prefill()
        for t in range(n_prompt, len(fed)):
            events = controller.decode(np.arange(len(layers), dtype=np.int32), values[:, t], dense[:, t])
            if t < n_prompt + loop.system.free_steps:
                continue
            totals["tokens"] += 1
            totals["flash_bytes"] += int(events.flash_bytes.sum())
            natural = step.ids[:, t].numpy()
            for name, ids in (("ideal_mass", natural), ("kept_mass", events.ids)):
                totals[name] += float(np.take_along_axis(dense[:, t], ids.astype(np.int64), axis=1).sum())
            totals["rerouted"] += sum(len(set(a) - set(b)) for a, b in zip(events.ids.tolist(), natural.tolist(), strict=True))
            totals["dram_bytes"] += int(events.dram_bytes.sum())
            totals["accesses"] += events.ids.size
            totals["misses"] += int((events.msb_hit == 0).sum())
            totals["degraded"] += int(events.degraded.sum())
            totals["high"] += int(events.is_high.sum())
    return totals


@pytest.mark.parametrize(("precision", "warmup"), [
    pytest.param(precision, warmup, marks=[pytest.mark.slow] * (i % 2 != n % 2))
    for i, precision in enumerate(PRECISIONS) for n, warmup in enumerate(WARMUPS)
])  # fmt: skip
def test_where_nothing_is_rerouted_the_closed_loop_counts_what_the_open_loop_counts(tiny, precision, warmup):
    for name in ("Qwen3Moe", "DeepseekV3" if precision in ("high-bit", "amat") else "GptOss"):
        model, batch = tiny[name], requests(new=(8, 11, 5))
        policy = SliceMoE(precision=PRECISIONS[precision](), warmup=WARMUPS[warmup](), free_steps=3)
        loop = Sliced(model, policy, capacity_of(model, policy.cache, 0.4), scheme=None)
        outputs = generate(model, batch, loop)[0]
        assert loop.totals == pytest.approx(open_loop(model, batch, outputs, loop), rel=1e-5)
        assert loop.totals["misses"] > 0


def test_a_loop_that_watches_counts_what_would_be_rerouted_and_changes_nothing(tiny, plain):
    model, batch, (plain_ids, logits) = tiny["Qwen3Moe"], requests(), plain["Qwen3Moe"]
    policy = SliceMoE(ROUTERS["cache_prior"](1.0), cache=SlicedCache(4, 2), free_steps=1)
    loop = Sliced(model, policy, capacity_of(model, policy.cache, 0.4), watches=True)
    assert torch.equal(generate(model, batch, loop)[1], logits)
    assert loop.totals["rerouted"] > 0, loop.totals
    wanted = open_loop(model, batch, plain_ids, loop)
    assert loop.totals | {"strayed": 0} == pytest.approx(wanted, rel=1e-5)


@pytest.fixture(scope="module")
def recall(tmp_path_factory):
    store = Store(str(tmp_path_factory.mktemp("recall")))
    return store.open(capture(CaptureSettings("embedded", "recall", max_requests=3, max_new_tokens=16, device="cpu"), store))


@pytest.mark.embedded
@pytest.mark.parametrize("precision", ["high-bit", "dbsc"])
def test_the_replay_of_a_tape_counts_what_the_closed_loop_counts(loaded, recall, precision):
    tape = recall
    routing = tape.read("routing")
    trace = trace_from_tables(tape.trace_id, tape.geometry, "captured", routing, tape.read("passes"))
    scores = scores_from_table(trace, tape.read("scores"), tape.manifest.score_rule, tape.manifest.score_params)
    policy = SliceMoE(precision=PRECISIONS[precision](), free_steps=2)
    capacity = capacity_of(loaded.model, policy.cache, 0.375)
    replayed = served(recorded_of(trace, scores=scores), policy, capacity).metrics()
    loop = Sliced(loaded.model, policy, capacity, scheme=None)
    tokens = tape.read("tokens")
    for request in tape.read("requests").iter_rows(named=True):
        ids = tokens.filter(tokens["request_id"] == request["request_id"]).sort("position")["token_id"].to_list()
        n = request["n_prompt_tokens"]
        forced = (*ids[n:], 0)  # the last token is never an input, and stands in no tape
        generate(loaded.model, [Request(0, tuple(ids[:n]), len(forced), forced)], loop)
    assert loop.miss_frac == pytest.approx(replayed["high_bit_miss_frac"].value, rel=1e-12)
    assert loop.miss_frac > 0.1


# ------------------------------------------------------------------------------------------------------------- refusals


def test_what_cannot_be_rerouted_is_refused_in_one_line(tiny, monkeypatch):
    model = tiny["Qwen3Moe"]
    monkeypatch.delitem(FAMILIES, "Qwen3Moe")
    refuses("its score rule is not known", Sliced, model, SliceMoE(), 1000)
    for system in (SliceMoE(ROUTERS["cache_prior"]()), SliceMoE(budget=BUDGETS["hard"]())):
        refuses("PhimoeForCausalLM: score rule sparsemixer weighs only the experts", Sliced, tiny["Phimoe"], system, 1000)
    refuses("dense", Sliced, build("Llama"), SliceMoE(), 1000)


@pytest.mark.parametrize(
    "make",
    [
        lambda model: Sliced(model, SliceMoE(), 1000, None),
        lambda model: Sliced(model, SliceMoE(), 1000, "amat"),
        lambda model: SlicedExperts(model, MAT(4, 2)),
    ],
)
def test_experts_that_are_a_list_of_modules_are_refused_in_one_line(make):
    model = build("Qwen3Moe")
    for module in list(model.modules()):
        if hasattr(module, "experts"):
            module.experts = nn.ModuleList([nn.Linear(4, 4) for _ in range(8)])
    before = [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()]
    refuses("layer 0 keeps its experts in a way that is not known", make, model)
    assert [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()] == before


def test_slices_are_those_of_the_tape_geometry(tiny):
    assert slices_of(tiny["Qwen3Moe"], SlicedCache(8, 4)) == ((768 + 144, 768), 8)  # 3 x 32 x 16 weights, 48 groups
    assert slices_of(tiny["Qwen3Moe"], SlicedCache(4, 4)) == ((768 + 144, 0), 8)


# ---------------------------------------------------------------------------------------------------------------- quality


def tried(policy: SliceMoE, parameters: dict[str, float], **windows: int) -> SystemTried:
    system = System("slicemoe", {"route": policy}, {"residency": {"budget": "50%"}})
    return SystemTried(system, "slicemoe", parameters, bytes_of, scheme=None, **windows)


def test_quality_of_a_policy_without_strength_is_the_models_own(tmp_path, model_folder):
    path = tmp_path / "text.txt"
    path.write_text("record once, replay often. " * 60)
    loaded = models.load(models.find(model_folder("Qwen3Moe")), device="cpu")
    system = SliceMoE(ROUTERS["cache_prior"](0.0), precision=HIGH)
    run = tried(system, {"strength": 0.0}, prompt_tokens=16, decode_tokens=24, n_items=3)
    inside = run.inside(loaded, 1)
    row = evaluate_inside(loaded, str(path), run, seed=1, inside=inside)
    conform("quality", pa.Table.from_pylist([row]))
    assert row["kl"] == pytest.approx(0.0, abs=1e-6)
    assert row["acceptance"] == pytest.approx(1.0, abs=1e-6)
    assert (row["n_items"], row["n_tokens"], inside.slots[0].totals["rerouted"]) == (3, 3 * 23, 0)
    assert json.loads(row["parameters"]) == {"strength": 0.0}
    assert evaluate_inside(loaded, str(path), run, seed=2)["perplexity"] != row["perplexity"]  # other windows
    moved = tried(SliceMoE(ROUTERS["cache_prior"](1.0)), {}, prompt_tokens=16, decode_tokens=24, n_items=3)
    opened, closed, _ = both_loops(loaded, str(path), moved)
    assert opened["tokens"] == closed["tokens"] > 0
    assert opened["rerouted"] > 0
    assert opened["kept_mass"] != pytest.approx(closed["kept_mass"], rel=1e-6)


def test_quality_compares_the_logits_a_family_scales_after_its_head(tmp_path, model_folder, monkeypatch):
    """Granite divides its head's output: both sides must be taken after that."""
    loaded = models.load(models.find(model_folder("GraniteMoe")), device="cpu")
    monkeypatch.setattr(loaded.model.config, "logits_scaling", 4.0)
    path = tmp_path / "text.txt"
    path.write_text("record once, replay often. " * 20)
    run = tried(SliceMoE(precision=HIGH), {}, prompt_tokens=8, decode_tokens=8, n_items=2)
    assert evaluate_inside(loaded, str(path), run)["kl"] == pytest.approx(0.0, abs=1e-6)
