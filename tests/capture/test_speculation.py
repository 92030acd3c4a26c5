"""Draft and verify inside live models: the output is the target's own, whatever the drafter."""

from functools import cache
from itertools import product
from types import SimpleNamespace

import every_family
import numpy as np
import pytest
import tiny_families
import torch
from refusing import refuses
from scipy.stats import chisquare

from tokentape.capture import models
from tokentape.capture.live.attention import KV
from tokentape.capture.live.loop import Request, Sampling, decode
from tokentape.capture.live.sampling import distribution
from tokentape.capture.live.slots import Inside
from tokentape.capture.speculation.drafters import Drafter, drafter_of
from tokentape.capture.speculation.settings import DraftSettings
from tokentape.policies.kv.streaming import Full
from tokentape.policies.speculation.tree import Shape

GREEDY = Sampling()
TREE = {"width": 3, "verify_nodes": 6, "pool_frac": 0.25}
WITHOUT_POOL = {**tiny_families.DENSE_CONFIGS, "Phimoe": None}


@pytest.fixture(scope="module")
def embedded():
    return models.load(models.find("embedded"), "cpu")


def run(loaded, requests, settings, sampling=GREEDY, stop_ids=frozenset(), small=None, seed=0):
    """(outcomes, rounds) of a group."""
    rounds = []
    with Inside(loaded.model, drafter=drafter_of(loaded, settings, small, seed)) as inside:
        return decode(loaded.model, requests, sampling, stop_ids, 0, inside, on_round=rounds.append), rounds


def tiny(name):
    return SimpleNamespace(model=tiny_families.build(name))


def prompts(n=2, new=10):
    return [Request(i, tuple(tiny_families.prompt(10 + 3 * i)[0].tolist()), new, seed=i) for i in range(n)]


@pytest.mark.parametrize(
    ("family", "is_tree"),
    [
        pytest.param(family, is_tree, marks=[pytest.mark.slow] * (n % 2 == is_tree))
        for is_tree in (False, True)
        for n, family in enumerate(tiny_families.CONFIGS)
    ],
)
def test_greedy_output_is_that_of_plain_decoding(family, is_tree):
    loaded, requests = tiny(family), prompts()
    settings = DraftSettings("quant" if family in WITHOUT_POOL else "elastic", **(TREE if is_tree else {}))
    outcomes, rounds = run(loaded, requests, settings)
    plain = [decode(loaded.model, [r], GREEDY, frozenset(), 0, with_nll=True)[0] for r in requests]
    for ours, theirs in zip(outcomes, plain, strict=True):
        assert ours.output_ids == theirs.output_ids
        np.testing.assert_allclose(ours.nll, theirs.nll, atol=1e-4)
    assert sum(r.n_accepted for r in rounds) > 0
    assert all(len(r.nodes) - 1 <= 6 for r in rounds)


@pytest.fixture(scope="module")
def greeted(embedded):
    """Requests, and what the model says to each alone."""
    texts = ["def greet(name):\n    return", "Tom has 12 apples and buys 30 more. How many"]
    requests = [Request(i, tuple(embedded.tokenizer(t)["input_ids"]), 12) for i, t in enumerate(texts)]
    return requests, [decode(embedded.model, [r], GREEDY, embedded.stop_ids, embedded.pad_id)[0] for r in requests]


@pytest.mark.parametrize(
    "settings",
    [
        DraftSettings(pool="oracle", pool_frac=0.25),
        DraftSettings(pool="lru", bits=0),
        DraftSettings(pool="random", pool_frac=0.1),  # one expert, fewer than top-k
        DraftSettings("quant", bits=2),
        DraftSettings("ngram", depth=6),
        DraftSettings("eagle", depth=5),
        DraftSettings("eagle", width=3, verify_nodes=7),
    ],
    ids=str,
)
def test_greedy_output_of_the_embedded_model(embedded, greeted, settings):
    requests, plain = greeted
    outcomes, rounds = run(embedded, requests, settings, stop_ids=embedded.stop_ids)
    for request, outcome, alone in zip(requests, outcomes, plain, strict=True):
        assert outcome.output_ids == alone.output_ids
        mine = [r for r in rounds if r.request_id == request.request_id]
        assert 1 + sum(len(r.committed) for r in mine) == len(outcome.output_ids)


def test_accepted_lengths_are_those_of_assisted_generation():
    """transformers drafts greedily with a second model: the same drafts, the same matches, round by round."""
    target, small = tiny_families.build("Qwen3Moe"), tiny_families.build("Qwen3Moe")
    with torch.no_grad():
        for name, weights in small.named_parameters():
            if "gate_up_proj" in name:
                weights.mul_(1.15)
    settings, request = DraftSettings("model:small", depth=4), prompts(1, new=24)[0]
    loaded, other = (SimpleNamespace(model=m, tokenizer=SimpleNamespace(get_vocab=dict)) for m in (target, small))
    [outcome], rounds = run(loaded, [request], settings, small=other)

    small.generation_config.num_assistant_tokens = 4
    small.generation_config.num_assistant_tokens_schedule = "constant"
    small.generation_config.assistant_confidence_threshold = 0.0
    matches: list[int] = []
    made = target._get_candidate_generator

    def recording(*args, **kwargs):
        generator = made(*args, **kwargs)
        update = generator.update_candidate_strategy
        generator.update_candidate_strategy = lambda ids, scores, n: (matches.append(int(n)), update(ids, scores, n))[1]
        return generator

    target._get_candidate_generator = recording
    ids = [*request.prompt_ids, outcome.output_ids[0]]  # our first round drafts behind the first token
    options = {"do_sample": False, "max_new_tokens": 23, "min_new_tokens": 23, "eos_token_id": None}
    whole = target.generate(torch.tensor([ids]), assistant_model=small, **options)
    assert outcome.output_ids[1:] == whole[0, len(ids) :].tolist()
    assert sum(matches) > 0
    assert [r.n_accepted for r in rounds][:-1] == matches[: len(rounds) - 1]  # the last round is clipped


@cache
def exact(prompt: tuple[int, ...], sampling: Sampling) -> dict[tuple[int, ...], float]:
    """Probability of every first three tokens of the embedded model, from its plain passes."""
    model = models.load(models.find("embedded"), "cpu").model
    found = {(): 1.0}
    for _ in range(3):
        longer = {}
        for ids, p in found.items():
            with torch.inference_mode():
                logits = model(torch.tensor([[*prompt, *ids]])).logits[0, -1:]
            row = distribution(logits, sampling)[0]
            longer |= {(*ids, int(t)): p * row[t] for t in np.flatnonzero(row)}
        found = longer
    return found


def sampled_p_value(embedded, settings, n):
    prompt, sampling = tuple(embedded.tokenizer("import os\nfor")["input_ids"]), Sampling(1.3, top_k=3)
    expected = exact(prompt, sampling)
    assert len(expected) == 27
    counts = dict.fromkeys(expected, 0)
    with models.suitable_threads(embedded.model), Inside(embedded.model, drafter=drafter_of(embedded, settings)) as inside:
        for first in range(0, n, 40):
            requests = [Request(seed, prompt, 3, seed=seed) for seed in range(first, first + 40)]
            for outcome in decode(embedded.model, requests, sampling, frozenset(), 0, inside):
                if tuple(outcome.output_ids) not in counts:
                    return 0.0  # a token that cannot be
                counts[tuple(outcome.output_ids)] += 1
    rare = {ids for ids, p in expected.items() if p * n < 5}
    found = np.array([c for ids, c in counts.items() if ids not in rare] + [sum(counts[i] for i in rare)])
    wanted = np.array([p * n for ids, p in expected.items() if ids not in rare] + [sum(expected[i] for i in rare) * n])
    return float(chisquare(found[wanted > 0], wanted[wanted > 0]).pvalue)


SAMPLED = [
    DraftSettings(depth=2, pool_frac=0.25, bits=2),
    DraftSettings(depth=2, width=3, pool_frac=0.25, bits=2),
    DraftSettings("eagle", depth=2, width=2),
    DraftSettings(depth=2, width=3, verify_nodes=4, pool_frac=0.25, bits=2),
    DraftSettings("eagle", depth=2),
]


@pytest.mark.parametrize("settings", SAMPLED[2:3], ids=["eagle tree"])
def test_sampled_output_passes_a_chi_square_test(embedded, settings):
    """Below .001 once in a thousand blocks of seeds; a wrong acceptance is below 1e-6 on as many."""
    assert sampled_p_value(embedded, settings, 120) > 0.001


@pytest.mark.slow
@pytest.mark.parametrize("settings", SAMPLED, ids=["chain", "tree", "eagle tree", "cut tree", "eagle chain"])
def test_sampled_output_passes_a_chi_square_test_at_length(embedded, settings):
    assert sampled_p_value(embedded, settings, 3000) > 0.01


def test_the_live_chi_square_sees_a_wrong_acceptance(embedded, monkeypatch):
    from tokentape.capture.live import loop

    def always(draft, nodes, probabilities, rng):
        path = [n for n in nodes[1:] if draft.parents[n] == n - 1]
        return path, int(probabilities[-1].argmax())

    monkeypatch.setattr(loop, "accept_sampled", always)
    assert sampled_p_value(embedded, SAMPLED[0], 120) < 1e-6


def test_the_same_seed_gives_the_same_output_and_the_model_stays_as_it_was(embedded):
    request = Request(0, tuple(embedded.tokenizer("class A:")["input_ids"]), 12, seed=5)
    settings = DraftSettings(width=2)
    first, again = (run(embedded, [request], settings, Sampling(1.0))[0][0].output_ids for _ in range(2))
    assert first == again
    before = {name: tensor.clone() for name, tensor in embedded.model.state_dict().items()}
    request = Request(0, tuple(embedded.tokenizer("x = 1")["input_ids"]), 4)
    for scheme, static in product(("lsb_aug", "trunc_sym", "amat"), ("slices", "full")):
        run(embedded, [request], DraftSettings(scheme=scheme, static=static))
    assert all(torch.equal(tensor, before[name]) for name, tensor in embedded.model.state_dict().items())


def test_a_small_model_drafts_and_ngrams_of_text_without_repeats_change_nothing(embedded):
    """The target as its own small model is right every time, also one that gives the logits of all tokens."""
    request = Request(0, tuple(embedded.tokenizer("The quick brown")["input_ids"]), 25)
    model, settings = every_family.build("qwen3_omni_moe_thinker"), DraftSettings("model:itself", depth=4)
    thinker = SimpleNamespace(model=model, tokenizer=SimpleNamespace(get_vocab=dict))
    for of, asked in ((embedded, request), (thinker, prompts(1)[0])):
        [outcome], rounds = run(of, [asked], settings, small=of)
        assert outcome.output_ids == decode(of.model, [asked], GREEDY, frozenset(), 0)[0].output_ids
        assert all(r.n_accepted == r.draft.n for r in rounds)
    loaded = tiny("Qwen3Moe")
    request = Request(0, tuple(range(3, 40)), 10)  # no token twice
    [outcome], rounds = run(loaded, [request], DraftSettings("ngram"))
    assert outcome.output_ids == decode(loaded.model, [request], GREEDY, frozenset(), 0)[0].output_ids
    assert rounds[0].n_accepted == 0


def test_a_small_model_of_another_vocabulary_is_refused(embedded):
    class Words(dict):
        get_vocab = dict.copy

    other = SimpleNamespace(model=tiny_families.build("Llama"), tokenizer=Words(a=0))
    refuses("another vocabulary", drafter_of, embedded, DraftSettings("model:other"), other)


def test_a_stop_token_ends_a_request_and_no_room_for_a_draft_is_clipped(embedded):
    request = Request(0, tuple(embedded.tokenizer("The quick brown")["input_ids"]), 25)
    [plain] = decode(embedded.model, [request], GREEDY, frozenset(), 0)
    stop = frozenset([plain.output_ids[7]])
    [expected] = decode(embedded.model, [request], GREEDY, stop, 0)
    drafter, kv, rounds = drafter_of(embedded, DraftSettings(bits=0, pool_frac=1.0)), KV(embedded.model, Full()), []
    with Inside(embedded.model, kv, drafter=drafter) as inside:
        [outcome] = decode(embedded.model, [request], GREEDY, stop, 0, inside, on_round=rounds.append)
    assert outcome.output_ids == expected.output_ids
    assert kv.totals["tokens"] == len(outcome.output_ids) - 1  # what was accepted behind the stop token counts nowhere
    assert sum(len(r.committed) for r in rounds) + 1 == len(outcome.output_ids)
    assert not any(r.is_clipped for r in rounds[:-1])
    requests = [Request(i, tuple(embedded.tokenizer("x = 1")["input_ids"]), n) for i, n in enumerate((0, 1, 2, 3))]
    outcomes, rounds = run(embedded, requests, DraftSettings())
    assert [len(o.output_ids) for o in outcomes] == [0, 1, 2, 3]
    assert all(r.is_clipped for r in rounds)
    assert {r.request_id: r.draft.n for r in rounds if r.request_id == 2} == {2: 0}


def test_pools_hold_what_the_batch_shares(embedded):
    """Hotness counts the original top-k of every token of every request's draft passes."""
    texts = ["def f(x):\n    return", "Anna has 3 boxes", "key: 42"]
    requests = [Request(i, tuple(embedded.tokenizer(t)["input_ids"]), 20) for i, t in enumerate(texts)]
    _, rounds = run(embedded, requests, DraftSettings(width=2, depth=3))
    top_k = embedded.model.config.num_experts_per_tok
    for number in {r.number for r in rounds}:
        mine = [r for r in rounds if r.number == number]
        changes = {id(r.pools) for r in mine}
        assert len(changes) == 1  # one pool for all
        hot = mine[0].pools.hotness
        fed = sum(sum(d < r.draft.shape.depth for d in r.draft.depths) for r in mine if r.draft.n)
        assert (hot.sum(axis=1) == top_k * fed).all()


class Head(Drafter):
    """A drafter of one's own: the target's head on its last pass's last hidden state and on its embeddings."""

    shape = Shape(3)

    def __init__(self, model):
        self.model, self.seen = model, []

    def _enter(self, stack):
        norm = self.model.model.norm
        stack.enter_context(norm.register_forward_hook(lambda module, args, out: self.seen.append(out[0, -1])))

    def draft(self, request_id, ids, text, draft, sampling, coming):
        state = self.seen[-1]
        for _ in range(draft.shape.depth):
            state = 0.5 * state + self.model.model.embed_tokens(torch.tensor(draft.tokens[-1]))
            draft.grow(distribution(self.model.lm_head(state)[None], sampling))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_head_of_ones_own_drafts_from_the_targets_hidden_states(embedded, temperature):
    request = Request(0, tuple(embedded.tokenizer("def f(x):")["input_ids"]), 20)
    rounds, drafter = [], Head(embedded.model)
    with Inside(embedded.model, drafter=drafter) as inside:
        [outcome] = decode(embedded.model, [request], Sampling(temperature), frozenset(), 0, inside, on_round=rounds.append)
    assert len(outcome.output_ids) == 20
    assert all(r.draft.n == 3 for r in rounds if not r.is_clipped)
    if temperature == 0:
        assert outcome.output_ids == decode(embedded.model, [request], GREEDY, frozenset(), 0)[0].output_ids
    assert len(drafter.seen) == len(rounds) + 1  # the prompt's pass and one per round
