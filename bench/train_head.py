"""Trains EAGLE's head for the embedded model on what that model says: `python -m bench.train_head FOLDER`.

Rows begin as training text and go on as the model does, greedily or drawn. The head foretells the model's next distribution from
the model's states, in the last batches from its own too (training-time test, arXiv 2503.01840). 24 minutes on a core that
other work shared.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch.nn import functional as F
from transformers import DynamicCache, PreTrainedModel

from tokentape.capture import models
from tokentape.capture.checkpoint import EMBEDDED
from tokentape.capture.embedded.batches import RECALL_LEVELS, Batches
from tokentape.capture.embedded.recipe import Recipe
from tokentape.capture.embedded.train import keep_freed_memory
from tokentape.capture.live.texts import CACHE
from tokentape.capture.plan import versions
from tokentape.capture.speculation.eagle import MANIFEST, WEIGHTS, Head

LOG_EVERY = 200  # batches
PROMPTS = (32, 64, 128)  # tokens of training text that a row begins with


@dataclasses.dataclass(frozen=True)
class HeadRecipe:
    """Everything that decides the weights. texts: groups of rows that the model continues; deep_batches: the last ones, in which
    `steps` drafted tokens are foretold in a row, each worth `decay` of the one before."""

    seed: int = 20_261_126
    texts: int = 32
    rows: int = 64
    tokens: int = 256
    batch_rows: int = 4
    batches: int = 5_600
    deep_batches: int = 1_600
    steps: int = 3
    decay: float = 0.8
    peak_lr: float = 3e-3
    warmup_frac: float = 0.05  # then down to nothing in a line


def continued(model: PreTrainedModel, batches: Batches, recipe: HeadRecipe, number: int) -> torch.Tensor:
    """(rows, tokens) i64: training text and what the model puts behind it; even groups greedily, odd ones drawn."""
    n_prompt, rng = PROMPTS[number // 2 % len(PROMPTS)], np.random.default_rng([recipe.seed, number])
    n_each = batches.recipe.batch_rows
    rows = np.concatenate([batches.at(number * recipe.rows + i, len(RECALL_LEVELS) - 1)[0] for i in range(recipe.rows // n_each)])
    starts = rng.integers(0, rows.shape[1] - n_prompt, len(rows))
    prompts = torch.from_numpy(np.stack([row[start : start + n_prompt] for row, start in zip(rows, starts, strict=True)]))
    torch.manual_seed(recipe.seed + number)
    how = {"do_sample": bool(number % 2), "top_k": 0, "max_length": recipe.tokens, "eos_token_id": None, "pad_token_id": 0}
    return model.generate(prompts, attention_mask=torch.ones_like(prompts), **how)


def loss_of(
    head: Head, model: PreTrainedModel, ids: torch.Tensor, states: torch.Tensor, steps: int, decay: float
) -> torch.Tensor:
    """Mean cross-entropy of what the head foretells against the model's distribution, over the steps of a draft. states: the
    model's, (rows, n, hidden), of ids (rows, n).

    At step k position t goes on from step k - 1 at t - 1: it sees the model's states up to the root, t - k + 1, and of the steps
    between them one position each.
    """
    with torch.no_grad():
        wanted = model.get_output_embeddings()(states).softmax(-1)
        tokens = model.get_input_embeddings()(ids)
    at, cache, total = torch.arange(ids.shape[1]), DynamicCache(), torch.zeros(())
    for step in range(steps):
        before = F.pad(states[:, :-1], (0, 0, 1, 0))
        root = at[:, None] - step
        seen = torch.cat([at <= root, *(at == root + later for later in range(1, step + 1))], dim=1)
        mask = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min).expand(len(ids), 1, -1, -1)
        states = head(tokens, before, use_cache=True, **{CACHE: cache}, attention_mask=mask, position_ids=at[None])
        logs = model.get_output_embeddings()(states[:, step:]).log_softmax(-1)
        total = total - decay**step * (wanted[:, step:] * logs).sum(-1).mean()
    return total / sum(decay**step for step in range(steps))


def train(recipe: HeadRecipe) -> tuple[Head, list[float], str]:
    """The head, its mean loss in nats per token of every 200 batches, and the fingerprint of the model that it is for."""
    keep_freed_memory()
    torch.set_num_threads(1)
    loaded = models.load(models.find(EMBEDDED), "cpu", "float32")
    model = loaded.model.requires_grad_(False)
    batches = Batches(Recipe(), loaded.tokenizer)  # the one that was trained
    with torch.no_grad():
        texts = torch.cat([continued(model, batches, recipe, number) for number in range(recipe.texts)])
        read = model.get_decoder()
        states = torch.cat([read(input_ids=ids, use_cache=False).last_hidden_state for ids in texts.split(recipe.batch_rows)])
    torch.manual_seed(recipe.seed)
    head = Head(model.config)
    optimizer = torch.optim.AdamW(head.parameters(), lr=recipe.peak_lr, betas=(0.9, 0.98), weight_decay=0.0)
    epochs = recipe.batches * recipe.batch_rows // len(texts) + 1
    order = torch.cat([torch.randperm(len(texts)) for _ in range(epochs)]).split(recipe.batch_rows)[: recipe.batches]
    losses = []
    for number, chosen in enumerate(order):
        done = (number + 1) / (len(order) + 1)
        for group in optimizer.param_groups:
            group["lr"] = recipe.peak_lr * min(1.0, done / recipe.warmup_frac, (1.0 - done) / (1.0 - recipe.warmup_frac))
        steps = recipe.steps if number >= recipe.batches - recipe.deep_batches else 1
        loss = loss_of(head, model, texts[chosen], states[chosen], steps, recipe.decay)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        if number % LOG_EVERY == LOG_EVERY - 1:
            print(f"batch {number + 1}/{len(order)}, {np.mean(losses[-LOG_EVERY:]):.4f} nats/token", flush=True)
    means = [round(float(np.mean(losses[i : i + LOG_EVERY])), 4) for i in range(0, len(losses), LOG_EVERY)]
    return head, means, loaded.source.fingerprint


def main(folder: Path, recipe: HeadRecipe) -> None:
    """Writes weights as 16-bit numbers, and a manifest of them."""
    head, losses, target = train(recipe)
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: weights.detach().half().contiguous() for name, weights in head.state_dict().items()}, folder / WEIGHTS)
    digest = hashlib.sha256((folder / WEIGHTS).read_bytes()).hexdigest()
    manifest: dict[str, object] = {"files": {WEIGHTS: digest}, "target": target}
    manifest |= {"recipe": vars(recipe), "nats_per_token": losses, "versions": versions("torch", "transformers")}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m bench.train_head FOLDER")
    main(Path(sys.argv[1]), HeadRecipe())
