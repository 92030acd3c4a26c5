"""Trains the embedded model from nothing: a Qwen3-MoE of 2.9 M parameters, on one core.

Every batch is a pure function of (seed, step) and of the recall level, which is part of the checkpoint; the learning rate is
a function of the step. So a run that is paused (`minutes`), stopped with Ctrl-C or killed, and resumed ends with
the same bits as one that was not, on the same machine and versions.
"""

import ctypes
import dataclasses
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional as F
from transformers import Qwen3MoeForCausalLM

from tokentape.capture.embedded.batches import RECALL_LEVELS, Batches
from tokentape.capture.embedded.recipe import Recipe, model_config, train_tokenizer

CHECKPOINT = "checkpoint.safetensors"
LEVEL_UP_ACCURACY = 0.8
LOG_EVERY_STEPS = 100


@dataclasses.dataclass
class State:
    """What a checkpoint holds beside the tensors."""

    step: int = 0
    is_whole: bool = True
    level: int = 0
    recall_accuracy: float = 0.0
    wall_s: float = 0.0
    sums: list[float] = dataclasses.field(default_factory=lambda: [0.0] * 4)  # losses since the last row of the log
    log: list[dict[str, Any]] = dataclasses.field(default_factory=list)


def train(
    out: Path,
    recipe: Recipe,
    minutes: float | None = None,
    report: Callable[[dict[str, Any]], None] = lambda row: None,
    checkpoint_every_s: float = 300.0,
) -> list[dict[str, Any]] | None:
    """Trains into `out`: a checkpoint, then the Hugging Face folder. Returns the log when finished, None when `minutes` ran out.

    `report` gets one row of the log per 100 steps: step, tokens, the three losses in nats/token, recall level, tokens/s.
    Raises ValueError if `out` holds a checkpoint of another recipe.
    """
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    keep_freed_memory()
    torch.set_num_threads(1)
    torch.manual_seed(recipe.seed)
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer(recipe)
    batches = Batches(recipe, tokenizer)
    model = Qwen3MoeForCausalLM(model_config(recipe))
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(8.0)  # untied input embedding: start at std .16, as the tied reference did
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.peak_lr, betas=(0.9, 0.98), weight_decay=0.0, fused=True)
    state = load_checkpoint(out, model, optimizer, recipe)
    model.train()
    begun = saved = logged = time.monotonic()
    wall_before = state.wall_s
    try:
        while state.step < recipe.n_steps:
            _step(model, optimizer, batches, state, recipe)
            if state.step % LOG_EVERY_STEPS and state.step < recipe.n_steps:
                continue
            now = time.monotonic()
            state.wall_s = wall_before + now - begun
            state.log.append(_log_row(state, recipe, now - logged))
            report(state.log[-1])
            logged = now
            if now - saved > checkpoint_every_s:
                save_checkpoint(out, model, optimizer, state, recipe)
                saved = now
            if minutes is not None and now - begun > 60 * minutes and state.step < recipe.n_steps:
                return None
    finally:
        if state.is_whole:
            save_checkpoint(out, model, optimizer, state, recipe)
    model.eval()
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    return state.log


def _step(model: Qwen3MoeForCausalLM, optimizer: torch.optim.Optimizer, batches: Batches, state: State, recipe: Recipe) -> None:
    """One optimizer step; advances `state`."""
    rows, n_recall = batches.at(state.step, state.level)
    ids = torch.from_numpy(rows)
    for group in optimizer.param_groups:
        group["lr"] = recipe.lr(state.step)
    output = model(input_ids=ids[:, :-1], use_cache=False, output_router_logits=True)
    losses = F.cross_entropy(output.logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none").view(len(rows), -1)
    balance = balance_loss(output.router_logits, model.config.num_experts_per_tok)
    optimizer.zero_grad(set_to_none=False)
    (losses.mean() + recipe.balance_coef * balance).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    state.is_whole = False  # until the counters follow, a checkpoint would mix two steps
    optimizer.step()
    _advance_level(state, batches, rows[-n_recall:], output.logits[-n_recall:])
    state.step += 1
    by_row = losses.detach().mean(1).numpy()
    n_text = len(rows) - n_recall - len(rows) // 4
    parts = (by_row[:n_text].mean(), by_row[n_text:-n_recall].mean(), by_row[-n_recall:].mean(), balance.item())
    state.sums = [total + float(part) for total, part in zip(state.sums, parts, strict=True)]
    state.is_whole = True


def _log_row(state: State, recipe: Recipe, seconds: float) -> dict[str, Any]:
    """Means since the last row; clears the sums."""
    n = (state.step - 1) % LOG_EVERY_STEPS + 1
    text, math, recall, balance = (round(total / n, 4) for total in state.sums)
    state.sums = [0.0] * 4
    return {
        "step": state.step,
        "tokens": state.step * recipe.batch_rows * recipe.context,
        "text_nats": text,
        "math_nats": math,
        "recall_nats": recall,
        "balance": balance,
        "recall_level": state.level,
        "recall_accuracy": round(state.recall_accuracy, 4),
        "tokens_per_s": round(n * recipe.batch_rows * recipe.context / seconds),
        "wall_s": round(state.wall_s),
    }


def _advance_level(state: State, batches: Batches, rows: np.ndarray, logits: torch.Tensor) -> None:
    """Moves to harder passages once most answers at this level come out right (running mean over about 50 batches)."""
    predicted = logits.detach().argmax(-1).numpy()
    mask = np.stack([batches.answers(row)[1:] for row in rows])
    if mask.any():
        accuracy = float((predicted == rows[:, 1:])[mask].mean())
        state.recall_accuracy += 0.02 * (accuracy - state.recall_accuracy)
    if state.recall_accuracy > LEVEL_UP_ACCURACY and state.level < len(RECALL_LEVELS) - 1:
        state.level += 1
        state.recall_accuracy = 0.5


def balance_loss(router_logits: tuple[torch.Tensor, ...], top_k: int) -> torch.Tensor:
    """E * sum_e f_e * p_e, mean over layers (Switch Transformer, arXiv 2101.03961, eq. 4); 1.0 when perfectly even."""
    total = torch.zeros(())
    for logits in router_logits:
        probabilities = logits.float().softmax(-1)
        chosen = probabilities.topk(top_k, dim=-1).indices
        load = torch.bincount(chosen.flatten(), minlength=logits.shape[-1]).float() / chosen.numel()
        total = total + logits.shape[-1] * (load * probabilities.mean(0)).sum()
    return total / len(router_logits)


def keep_freed_memory() -> None:
    """Stops glibc from returning pages between steps: without this page faults take most of the time."""
    try:
        libc = ctypes.CDLL("libc.so.6")
    except OSError:
        return  # not glibc: training is slower, nothing else changes
    for parameter, value in ((-3, 1 << 30), (-1, 1 << 30), (-2, 1 << 28)):  # MMAP_THRESHOLD, TRIM_THRESHOLD, TOP_PAD
        libc.mallopt(parameter, value)


def save_checkpoint(folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, state: State, recipe: Recipe) -> None:
    """One safetensors file (weights, Adam moments) with the rest as its metadata, renamed into place."""
    tensors = {f"model.{name}": p.detach() for name, p in model.named_parameters()}
    for name, p in model.named_parameters():
        for key, value in optimizer.state.get(p, {}).items():
            tensors[f"adam.{name}.{key}"] = value
    aside = folder / f"{CHECKPOINT}.part"
    meta = {"state": json.dumps(dataclasses.asdict(state)), "recipe": json.dumps(dataclasses.asdict(recipe))}
    save_file({k: v.contiguous() for k, v in tensors.items()}, aside, metadata=meta)
    os.replace(aside, folder / CHECKPOINT)


def load_checkpoint(folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, recipe: Recipe) -> State:
    """The state to continue from. Raises ValueError if the checkpoint was made with another recipe."""
    path = folder / CHECKPOINT
    if not path.exists():
        return State()
    with path.open("rb") as handle:
        header = json.loads(handle.read(int.from_bytes(handle.read(8), "little")))["__metadata__"]
    if json.loads(header["recipe"]) != dataclasses.asdict(recipe):
        raise ValueError(f"{path} was made with another recipe ({header['recipe']}); give another --out or remove it")
    tensors = load_file(path)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(tensors[f"model.{name}"])
            optimizer.state[p] = {key: tensors[f"adam.{name}.{key}"] for key in ("step", "exp_avg", "exp_avg_sq")}
    return State(**json.loads(header["state"]))
