"""A KV policy inside live models of every family: no budget changes nothing, positions survive, masks equal deletion."""

import copy

import numpy as np
import pytest
import torch
import transformers
from refusing import refuses
from tiny_families import BASE, CONFIGS, VOCAB, build, generate, randomised

from tokentape.capture.live.attention import KV, _logits
from tokentape.capture.live.loop import Request, Round, Sampling, decode
from tokentape.capture.live.slots import Inside
from tokentape.capture.live.storage import Leaking, Plain
from tokentape.capture.live.texts import CACHE
from tokentape.capture.speculation.drafters import drafter_of
from tokentape.capture.speculation.settings import DraftSettings
from tokentape.policies.kv import KV_POLICIES
from tokentape.policies.kv.importance import AEP, AERP, H2O
from tokentape.policies.kv.random_eviction import RandomEviction
from tokentape.policies.kv.refresh import BitRates
from tokentape.policies.kv.snapkv import SnapKV
from tokentape.policies.kv.streaming import Streaming
from tokentape.policies.kv.tova import TOVA

GREEDY = Sampling()
FULL = KV_POLICIES["full"]()
LIVE = [
    Streaming(8, sink=2), H2O(8), TOVA(8), SnapKV(8, window=3), RandomEviction(8, sink=1), AEP(8, sink=1), AERP(8, sink=1),
    AEP(8, sink=1, importance="mean", score_kind="raw", score_bits=4), AEP(8, sink=1, is_per_head=False),
]  # fmt: skip
NAMES = [f"{type(p).__name__}-{i}" for i, p in enumerate(LIVE)]


@pytest.fixture(scope="module")
def tiny():
    torch.set_num_threads(1)
    made = {name: build(name) for name in CONFIGS}
    for model in made.values():
        model.set_attn_implementation("eager")  # what is compared with sums in the same order
    return made


def requests(lengths=(12,), n=10, vocabulary=VOCAB, forced=False):
    rng = np.random.default_rng(7)
    draw = lambda k: tuple(rng.integers(3, vocabulary, k).tolist())  # noqa: E731
    return [Request(i, draw(k), n, forced=draw(n) if forced else None) for i, k in enumerate(lengths)]


@pytest.mark.parametrize("n_policies", [1, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", list(CONFIGS))
def test_no_budget_equals_the_plain_model(tiny, name, n_policies):
    """Same greedy tokens, in double precision logits within 1e-6 of their size; in a padded single-precision batch, whose sums
    run in another order, within 5e-6."""
    double = copy.deepcopy(tiny[name]).double()
    double.config._experts_implementation = "eager"  # torch's grouped product takes no doubles
    at = list(CONFIGS).index(name) % 3
    policies = (AEP(64, sink=1), *((FULL, AEP(None), TOVA(64)) * 2)[at : at + n_policies])
    for model, batch, within, of in (
        (double, requests(n=6), 1e-6, policies),
        (tiny[name], requests((5, 12, 9), n=6), 5e-6, policies[:n_policies]),
    ):
        ids, logits = generate(model, batch)
        for policy in of:
            ours, theirs = generate(model, batch, KV(model, policy))
            assert ours == ids
            assert (theirs - logits).abs().max() <= within * max(1.0, float(logits.abs().max()))


@pytest.mark.parametrize(("name", "policy"), [
    pytest.param(name, policy, id=f"{name}-{NAMES[i]}", marks=[pytest.mark.slow] * (i % 3 != n % 3))
    for n, name in enumerate(("Qwen3Moe", "Mistral", "GptOss", "DeepseekV3", "Gemma2", "OPT")) for i, policy in enumerate(LIVE)
])  # fmt: skip
def test_budget_and_positions_hold_in_a_batch(tiny, name, policy):
    batch = requests((5, 12, 9))
    loop = KV(tiny[name], policy, keeps_trail=True)
    generate(tiny[name], batch, loop)
    budget, sink, _ = policy.limits
    for step, layers in enumerate(loop.trail):
        for positions, window in zip(layers, loop.windows, strict=True):
            for row, request in zip(positions, batch, strict=True):
                seen = len(request.prompt_ids) + step
                for held in row:
                    kept = held[held >= 0]
                    assert np.unique(kept).size == kept.size <= budget
                    assert kept.max() < seen
                    if not window:
                        assert kept.size == min(budget, seen)
                        assert set(range(min(sink, seen))) <= set(kept.tolist())
                    else:
                        assert kept.min() > seen - window
    assert loop.totals["tokens"] == 3 * 9


def test_heads_keep_tokens_of_their_own_and_bytes_are_those_kept(tiny):
    for name, n_heads in (("Qwen3Moe", 2), ("OPT", 4), ("DeepseekV2", 1)):
        for policy, is_shared in ((AEP(6, sink=1), n_heads == 1), (AEP(6, sink=1, is_per_head=False), True)):
            loop = KV(tiny[name], policy, keeps_trail=True)
            generate(tiny[name], requests(), loop)
            sets = [[frozenset(h[h >= 0].tolist()) for h in layer[0]] for layer in loop.trail[-1]]
            assert all(len(layer) == n_heads for layer in sets)
            assert all(len(set(layer)) == 1 for layer in sets) == is_shared
    model, batch = tiny["Qwen3Moe"], requests((12,), 9)  # 3 layers, 2 KV heads of 8, 16 bits
    loop = KV(model, AEP(6, sink=1))
    generate(model, batch, loop)
    assert loop.measured["kv_bytes"] == 3 * 2 * 6 * 2 * 8 * 2
    full = KV(model, FULL)
    generate(model, batch, full)
    assert full.measured["kv_bytes"] == pytest.approx(3 * 2 * np.mean(range(13, 21)) * 2 * 8 * 2)


@pytest.mark.parametrize("name", ["Qwen3Moe", "Llama", "DeepseekV3"])
def test_slots_hold_the_keys_of_their_original_positions(tiny, name):
    """In the first layer, which no eviction can reach, keys equal those of the full cache at the positions that are kept."""
    model, batch = tiny[name], requests(forced=True)
    full, loop = KV(model, FULL), KV(model, AEP(7, sink=1))
    found = []
    for each in (full, loop):
        with Inside(model, each) as inside:
            decode(model, batch, GREEDY, frozenset(), 0, inside)
            layer = each.current.layers[0]
            found.append((layer.positions()[0], [layer.planes[n][0][0] for n in ("keys", "values")]))
    (all_at, everything), (at, kept) = found
    for name_of, plane in zip(everything, kept, strict=True):
        for head in range(at.shape[0]):
            where = {int(p): s for s, p in enumerate(all_at[head]) if p >= 0}
            for slot, position in enumerate(at[head]):
                if position >= 0:
                    assert torch.allclose(plane[head, slot], name_of[head, where[int(position)]], atol=1e-6)


@pytest.mark.parametrize("policy", [Streaming(6, sink=2), AEP(6, sink=1)], ids=["streaming", "aep"])
@pytest.mark.parametrize("name", ["Qwen3Moe", "Llama", "GptOss", "Gemma2", "OPT", "DeepseekV3"])
def test_masked_attention_equals_deletion(tiny, name, policy):
    """A full cache whose attention is masked, head by head, to what the policy kept gives the logits of the deleting cache."""
    model, batch = tiny[name], requests(forced=True)
    deleting, masked = KV(model, policy, keeps_trail=True), KV(model, FULL, keeps_trail=True)
    _, deleted = generate(model, batch, deleting)

    def mask(layer, query):
        kept, now = deleting.trail[len(masked.trail) - 1][layer.index][0], layer.seen - 1
        positions = layer.positions()[0, :, : layer.width]
        hidden = np.stack([~np.isin(p, [now, *k[k >= 0]]) for p, k in zip(positions, kept, strict=True)])
        hidden = torch.from_numpy(np.repeat(hidden, query.shape[1] // len(hidden), axis=0))
        return torch.zeros(hidden.shape).masked_fill(hidden, torch.finfo(torch.float32).min)[None, :, None]

    masked._slot_mask = mask
    _, logits = generate(model, batch, masked)
    assert (logits - deleted).abs().max() < 1e-5 * max(1.0, float(deleted.abs().max()))
    _, plain = generate(model, batch)
    assert (plain - deleted).abs().max() > 1e-2  # eviction is seen at all


def test_later_tokens_move_nothing_and_a_batch_is_its_requests(tiny):
    for model in tiny.values():
        first, second = requests(forced=True), requests(forced=True)
        second = [Request(0, r.prompt_ids, r.max_new_tokens, forced=(*r.forced[:-3], 5, 6, 7)) for r in second]
        a, b = (generate(model, batch, KV(model, AEP(8, sink=1)))[1] for batch in (first, second))
        assert torch.equal(a[:-2], b[:-2])
        assert not torch.equal(a[-1], b[-1])
    for name in ("Qwen3Moe", "Mistral", "GptOss", "DeepseekV3"):
        batch = requests((5, 12, 9))
        together, _ = generate(tiny[name], batch, KV(tiny[name], AEP(8, sink=1)))
        apart = [generate(tiny[name], [r], KV(tiny[name], AEP(8, sink=1)))[0][0] for r in batch]
        assert together == apart


def test_recomputed_tokens_count_as_layer_inputs(tiny):
    """OPT: four heads of 8, hidden 32. All heads keep all: 64 B a token in place of 4 x 32 B, and two products for 64 values."""
    model, batch = tiny["OPT"], requests((6,), 3)
    loop = KV(model, AERP(16, sink=1))
    generate(model, batch, loop)
    assert loop.measured == {"kv_bytes": 3 * 7.5 * 64, "recompute_ops": 3 * 6.5 * 2 * 32 * 64}  # the newest from the pass
    rounds, of, anew = list[Round](), type("Of", (), {"model": model}), KV(model, AERP(None))
    with Inside(model, anew, drafter=drafter_of(of, DraftSettings("quant", depth=2, bits=7))) as inside:
        decode(model, requests((6,), 9), Sampling(), frozenset(), 0, inside, on_round=rounds.append)
    assert len(starts := np.cumsum([6, *(1 + len(r.path) for r in rounds)])) < 9, "passes of several tokens compute anew once"
    assert anew.measured["recompute_ops"] == starts[:-1].sum() * 3 * 2 * 32 * 64 / (starts[-1] - 6)
    with pytest.warns(UserWarning, match="recompute is off"):
        physical = KV(tiny["Qwen3Moe"], AERP(16, sink=1, accounting="physical"))  # x 64 B, two KV heads of 32 B
    generate(tiny["Qwen3Moe"], batch, physical)
    assert physical.measured["kv_bytes"] == 3 * 7.5 * 64


@pytest.mark.parametrize("name", ["OPT", "Qwen3Moe", "DeepseekV3", "Gemma2"])
def test_what_is_attended_to_comes_from_the_stored_input(tiny, name):
    """AERP keeps what AEP does and computes the same; what is lost of the stored inputs is lost of all computed from them."""
    batch = requests((12, 7), 9, forced=True)
    _, plain = generate(tiny[name], batch, KV(tiny[name], AEP(8, sink=1)))
    _, anew = generate(tiny[name], batch, KV(tiny[name], AERP(8, sink=1)))
    assert torch.allclose(plain, anew, atol=2e-5)

    class Blank(Plain):
        def read(self, planes, is_hst, place):
            return planes[0] * 0 if place[1] == "inputs" else planes[0]

    _, lost = generate(tiny[name], batch, KV(tiny[name], AERP(8, sink=1), Blank()))
    assert torch.equal(lost[0], plain[0]), "the prompt has seen itself as it was"
    assert not torch.allclose(lost[1:], plain[1:], atol=1e-3)


@pytest.mark.parametrize("resample", [False, True])
def test_bits_are_lost_of_what_is_stored(tiny, resample):
    """No rate is the words alone, whatever is drawn; a rate costs inputs too; so does one group's."""
    batch, policy = requests((12, 7), 9, forced=True), AERP(8, sink=1, importance="mean")

    def logits(rates, seed=0):
        return generate(tiny["Llama"], batch, KV(tiny["Llama"], policy, Leaking(rates, "int16", resample, seed)))[1]

    none, some, grouped = map(logits, (BitRates(), BitRates.uniform(0.02), BitRates(hst_msb=0.02)))
    assert torch.equal(none, logits(BitRates(), seed=1))
    assert torch.equal(some, logits(BitRates.uniform(0.02)))
    for one, other in ((some, none), (grouped, none), (grouped, some)):
        assert not torch.allclose(one, other, atol=1e-3)


def test_words_are_read_in_the_precision_of_the_model(tiny):
    model, batch = copy.deepcopy(tiny["Qwen3Moe"]).bfloat16(), requests((12, 7), 9, forced=True)
    for policy in (AEP(8, sink=1), AERP(8, sink=1)):
        once, anew = (generate(model, batch, KV(model, policy, Leaking(resample=at_read)))[1] for at_read in (False, True))
        assert torch.equal(once, anew)


def test_groups_of_the_whole_cache_go_by_the_attention_of_all_queries(tiny):
    rates, batch = BitRates(hst_msb=0.02), requests((6,), 20, forced=True)
    of = [generate(tiny["Llama"], batch, KV(tiny["Llama"], policy, Leaking(rates)))[1] for policy in (FULL, AEP(None))]
    assert torch.equal(*of)


def test_raw_scores_are_capped_where_the_softmax_gets_them_so():
    query, key = torch.full((1, 2, 3, 4), 9.0), torch.full((1, 1, 5, 4), 9.0)
    assert (_logits(query, key, None, 1.0, 5.0) == 5.0).all()
    assert (_logits(query, key, None, 1.0, None) == 324.0).all()


def test_attention_in_chunks_is_followed_within_the_first_alone():
    config = transformers.Llama4TextConfig(**BASE, head_dim=8, num_local_experts=4, attention_chunk_size=8)
    model = randomised(transformers.AutoModelForCausalLM.from_config(config))
    model.set_attn_implementation("eager")
    whole = requests((5,), 4)
    assert generate(model, whole, KV(model, FULL))[0] == generate(model, whole)[0]
    refuses("follows the first: a request of 9 is too long", generate, model, requests((5,), 5), KV(model, FULL))


def test_layers_that_a_text_does_not_run_hold_nothing():
    config = transformers.MllamaTextConfig(**BASE, cross_attention_layers=[1], rope_parameters=None)
    model = randomised(transformers.MllamaForCausalLM(config))
    assert generate(model, requests(), KV(model, FULL))[0] == generate(model, requests())[0]


def test_scales_of_stored_inputs_are_of_the_request_alone(tiny):
    """Padding of a batch sets none."""
    batch, scales = requests((12, 7), 2, forced=True), []

    class Watched(Leaking):
        def write(self, x, place, is_prompt):
            planes = super().write(x, place, is_prompt)
            if is_prompt and place[1] == "inputs":
                scales.append(self.scales[place][-1])
            return planes

    for taken in (batch, batch[1:]):
        generate(tiny["Llama"], taken, KV(tiny["Llama"], AERP(8, sink=1), Watched()))
    np.testing.assert_allclose(*np.split(np.array(scales), 2), rtol=1e-4)


def test_what_cannot_run_is_refused(tiny):
    model = tiny["Llama"]
    refuses("over a tape only", KV, model, KV_POLICIES["oracle"](8))
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad(), KV(model, AEP(8, sink=1)) as slot:
        out = model(input_ids=ids, use_cache=True, **{CACHE: slot.new_cache([0])})
        refuses("one token at a time", model, input_ids=ids[:, :2], use_cache=True, **{CACHE: getattr(out, CACHE)})
        for what in (lambda c: c.layers[0].crop(-1), lambda c: c.reset(), lambda c: c.reorder_cache(torch.tensor([0]))):
            refuses("an evicting cache", what, getattr(out, CACHE))
        assert not getattr(out, CACHE).is_croppable
    kept = model.config._attn_implementation
    assert not kept.startswith("tokentape")
    assert torch.isfinite(model(input_ids=ids).logits).all()
