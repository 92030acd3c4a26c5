"""EAGLE's head: what it foretells, when it goes on from itself, what it accepts, and whom it refuses."""

import hashlib
import json

import numpy as np
import pytest
import torch
from refusing import refuses

from bench.train_head import HeadRecipe, loss_of, train
from tokentape.capture import models
from tokentape.capture.live.loop import Request, Sampling, decode
from tokentape.capture.live.slots import Inside
from tokentape.capture.plan import CaptureSettings, plan
from tokentape.capture.run import capture
from tokentape.capture.speculation import eagle
from tokentape.capture.speculation.drafters import drafter_of
from tokentape.capture.speculation.settings import DraftSettings
from tokentape.policies.speculation.tree import Shape
from tokentape.warehouse.tape import Store

pytestmark = pytest.mark.embedded
GOLDEN = 3.0625  # drafted tokens of four that a round accepts
CHAIN = DraftSettings("eagle")


@pytest.fixture(scope="module")
def texts(loaded):
    """Held-out questions, the same under every Python."""
    settings = CaptureSettings("embedded", "math", max_requests=6, max_prompt_tokens=64, max_new_tokens=24)
    return [tuple(loaded.tokenizer(item.prompt)["input_ids"]) for item in plan(settings).items]


def drafted(loaded, texts, drafter, new=24):
    rounds = []
    with models.suitable_threads(loaded.model), Inside(loaded.model, drafter=drafter) as inside:
        requests = [Request(i, ids, new, seed=i) for i, ids in enumerate(texts)]
        outcomes = decode(loaded.model, requests, Sampling(), frozenset(), 0, inside, on_round=rounds.append)
    return outcomes, rounds


def accepted(rounds):
    """Drafted tokens that a round accepts, mean over those that no limit cut short."""
    return float(np.mean([r.n_accepted for r in rounds if not r.is_clipped]))


def changed(loaded, change):
    """The shipped head with other weights."""
    head = eagle.shipped(loaded)
    with torch.no_grad():
        for weights in head.parameters():
            weights.copy_(change(weights))
    return head


def foretold(loaded, head, ids, depth):
    """(depth, V): by hand, without a cache: the target's states up to the last token but one, then the head's own."""
    model = loaded.model
    states = torch.cat([torch.zeros(1, 128), model.model(torch.tensor([ids[:-1]])).last_hidden_state[0]])
    ids, found = list(ids), []
    for _ in range(depth):
        made = head(model.model.embed_tokens(torch.tensor([ids])), states[None])[0]
        states = torch.cat([states, made[-1:]])
        found.append(model.lm_head(made[-1]).softmax(-1))
        ids.append(int(found[-1].argmax()))
    return torch.stack(found)


@torch.inference_mode()
def test_a_chain_goes_on_from_the_heads_own_states(loaded, texts):
    """Later rounds too: what was verified since is read with the target's states, and drafts leave nothing behind."""
    head = eagle.shipped(loaded)
    [outcome], rounds = drafted(loaded, texts[:1], eagle.EagleDrafter(loaded, Shape(3), head), new=12)
    ids = [*texts[0], outcome.output_ids[0]]
    for of in rounds:
        if of.draft.n:
            by_hand = foretold(loaded, head, ids, of.draft.n)
            assert of.draft.tokens[1:] == by_hand.argmax(-1).tolist()
            np.testing.assert_allclose(of.draft.probs[1:], by_hand.max(-1).values, atol=1e-4)
        ids += of.committed
    assert len(rounds) > 2


@torch.inference_mode()
def test_training_foretells_what_drafting_does(loaded, texts):
    """Its loss is the cross-entropy of chains drafted behind every token, told what comes."""
    head, ids, decay = eagle.shipped(loaded), texts[0][:14], HeadRecipe().decay
    model, sums = loaded.model, [[] for _ in range(3)]
    states = model.model(torch.tensor([ids])).last_hidden_state[0]
    wanted = model.lm_head(states).softmax(-1)
    shifted = torch.cat([torch.zeros(1, 128), states])
    for root in range(len(ids)):
        own = shifted[: root + 1]
        for step in range(min(3, len(ids) - root)):
            made = head(model.model.embed_tokens(torch.tensor([ids[: root + step + 1]])), own[None])[0, -1:]
            sums[step].append(-(wanted[root + step] * model.lm_head(made[0]).log_softmax(-1)).sum())
            own = torch.cat([own, made])
    worth = decay ** np.arange(3)
    by_hand = sum(w * float(torch.stack(of).mean()) for w, of in zip(worth, sums, strict=True)) / worth.sum()
    assert float(loss_of(head, model, torch.tensor([ids]), states[None], 3, decay)) == pytest.approx(by_hand, rel=1e-4)


def test_what_the_shipped_head_accepts(loaded, texts):
    """More than looking text up, than a head that was never trained, and than the same weights in another order."""
    torch.manual_seed(0)
    heads = {
        "shipped": None,
        "untrained": eagle.Head(loaded.model.config).eval(),
        "shuffled": changed(loaded, lambda w: w.flatten()[torch.randperm(w.numel())].view_as(w)),
    }
    found = {}
    for name, head in heads.items():
        found[name] = accepted(drafted(loaded, texts[: 2 if head else 6], eagle.EagleDrafter(loaded, Shape(), head))[1])
    found["ngram"] = accepted(drafted(loaded, texts, drafter_of(loaded, DraftSettings("ngram")))[1])
    assert found["shipped"] == pytest.approx(GOLDEN, abs=0.05)
    assert found["shipped"] > 4.0 * found["ngram"] > 0.0
    assert max(found["untrained"], found["shuffled"]) < 0.2


@pytest.mark.slow
def test_training_again_gives_the_same_bits():
    recipe = HeadRecipe(texts=2, rows=4, tokens=48, batch_rows=2, batches=6, deep_batches=2)
    (one, losses, target), (two, again, _) = train(recipe), train(recipe)
    assert losses == again
    assert target == json.loads((eagle.FOLDER / eagle.MANIFEST).read_text())["target"]
    assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), two.state_dict().values(), strict=True))


def test_a_capture_names_it_and_follows_its_weights(loaded, tmp_path, monkeypatch):
    store = Store(str(tmp_path))
    settings = CaptureSettings(
        "embedded", "math", ("tokens",), 2, max_prompt_tokens=32, max_new_tokens=8, speculation=DraftSettings("eagle")
    )
    tape = store.open(capture(settings, store))
    assert tape.manifest.settings["speculation"]["draft"] == "eagle"
    assert set(tape.read("passes").filter(kind="draft")["policy_state"]) == {"eagle"}
    monkeypatch.setattr(eagle, "manifest_for", lambda source: {"files": {"head.safetensors": "another"}})
    from tokentape.capture import plan as planning

    monkeypatch.setattr(planning, "manifest_for", eagle.manifest_for)
    assert plan(settings).trace_id != tape.trace_id


def test_another_model_and_damaged_weights_are_refused_in_one_line(loaded, model_folder, prompts, monkeypatch, tmp_path):
    others = CaptureSettings(model_folder("Qwen3Moe"), prompts, max_prompt_tokens=20, max_new_tokens=8, speculation=CHAIN)
    refuses("embedded model's, not", plan, others)
    for path in eagle.FOLDER.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    with (tmp_path / eagle.WEIGHTS).open("r+b") as handle:
        handle.seek(-1, 2)
        handle.write(b"\x55")
    monkeypatch.setattr(eagle, "FOLDER", tmp_path)
    refuses("install tokentape again", drafter_of, loaded, CHAIN)


def test_the_shipped_folder_is_what_its_manifest_says(loaded):
    manifest = json.loads((eagle.FOLDER / eagle.MANIFEST).read_text())
    assert manifest["target"] == loaded.source.fingerprint
    for name, digest in manifest["files"].items():
        assert hashlib.sha256((eagle.FOLDER / name).read_bytes()).hexdigest() == digest
    assert sum(path.stat().st_size for path in eagle.FOLDER.iterdir()) < 600_000
    assert manifest["recipe"] == vars(HeadRecipe())
