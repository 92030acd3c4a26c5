"""Trains the embedded model from nothing: tokenizer, then a Qwen3-MoE of 2.9 M parameters, on one core.

Every batch is a pure function of (seed, step) and of the recall level, which is part of the checkpoint; the learning rate is
a function of the step. So a run that is paused (`minutes`), killed and resumed ends with the same bits as one that was not,
on the same machine and versions. Shapes and schedule: specs of the model card. Does not evaluate: see capture/evaluate.py.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn import functional as F
from transformers import PreTrainedTokenizerFast, Qwen3MoeConfig, Qwen3MoeForCausalLM

from capture.embedded import texts

END_OF_TEXT = "<|endoftext|>"
# (keys, filler lines) of a recall passage, easiest first. The level rises when most answers at it come out right.
RECALL_LEVELS = ((2, 0), (4, 0), (8, 0), (12, 0), (12, 8), (12, 16), (12, 24), (12, 33))
DENSE_LEVELS = 3  # half of each batch is recall until this level is passed, a quarter after
LEVEL_UP_ACCURACY = 0.8


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Everything that decides the weights. `tokens` fixes the length of the schedule."""

    tokens: int = 28_000_000
    seed: int = 20_261_120
    batch_rows: int = 4
    context: int = 512
    vocabulary: int = 1024
    peak_lr: float = 3e-3
    final_lr_frac: float = 0.05
    warmup_frac: float = 0.02
    balance_coef: float = 0.01

    @property
    def n_steps(self) -> int:
        return max(1, self.tokens // (self.batch_rows * self.context))

    def lr(self, step: int) -> float:
        warmup = max(1, int(self.warmup_frac * self.n_steps))
        if step < warmup:
            return self.peak_lr * (step + 1) / warmup
        done = (step - warmup) / max(1, self.n_steps - warmup)
        return self.peak_lr * (1.0 - (1.0 - self.final_lr_frac) * done)


def model_config(recipe: Recipe) -> Qwen3MoeConfig:
    """4 layers, hidden 128, 4 heads of 32 without GQA, 16 experts of width 96, top-4, untied embeddings."""
    return Qwen3MoeConfig(
        vocab_size=recipe.vocabulary,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=32,
        num_experts=16,
        num_experts_per_tok=4,
        moe_intermediate_size=96,
        norm_topk_prob=True,
        decoder_sparse_step=1,
        mlp_only_layers=[],
        rms_norm_eps=1e-6,
        max_position_embeddings=recipe.context,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
    )


def train_tokenizer(recipe: Recipe) -> PreTrainedTokenizerFast:
    """Byte-level BPE on the training split only; each digit is a token of its own."""
    rng = np.random.default_rng([recipe.seed, 1])
    generated = texts.math_items(False, [recipe.seed, 2])
    corpus = [item.prompt for item in texts.code_files(False) + texts.doc_topics(False)]
    corpus += [item.prompt + (item.solution or "") for item, _ in zip(generated, range(8_000), strict=False)]
    corpus += [texts.recall_training_passage(rng, 12, 12) for _ in range(1_500)]
    corpus += [c + v for c in texts.CONSONANTS for v in texts.VOWELS] * 4_000  # so that keys are two or three tokens
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=recipe.vocabulary,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
        model_max_length=recipe.context,
        clean_up_tokenization_spaces=False,
    )


class Batches:
    """Rows of `context + 1` token ids: library text, math and recall, each batch a function of (seed, step, level)."""

    def __init__(self, recipe: Recipe, tokenizer: PreTrainedTokenizerFast) -> None:
        self.recipe, self.tokenizer = recipe, tokenizer
        order = np.random.default_rng([recipe.seed, 3])
        files = [item.prompt for item in texts.code_files(False) + texts.doc_topics(False)]
        stream: list[int] = []
        for i in order.permutation(len(files)):
            stream += [0, *self._encode(files[i])]
        self.text = np.array(stream, dtype=np.int64)
        self.equals, self.newline = self._encode("=")[0], self._encode("\n")[0]

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer.backend_tokenizer.encode(text).ids

    def _packed(self, documents: Callable[[], str]) -> list[int]:
        row: list[int] = []
        while len(row) <= self.recipe.context:
            row += [0, *self._encode(documents())]
        return row[: self.recipe.context + 1]

    def at(self, step: int, level: int) -> tuple[np.ndarray, int]:
        """(rows, context + 1) i64 ids and the number of recall rows, which come last."""
        n_rows, width = self.recipe.batch_rows, self.recipe.context + 1
        n_recall = n_rows // (2 if level <= DENSE_LEVELS else 4)
        n_math = n_rows // 4
        rng = np.random.default_rng([self.recipe.seed, 4, step])
        rows = []
        for start in rng.integers(0, len(self.text) - width, size=n_rows - n_recall - n_math):
            rows.append(self.text[start : start + width].tolist())
        problems = texts.math_items(False, [self.recipe.seed, 5, step])

        def problem() -> str:
            item = next(problems)
            return item.prompt + (item.solution or "")

        def passage() -> str:
            pick = level if rng.random() < 0.5 else int(rng.integers(0, level + 1))
            n_keys, n_filler = RECALL_LEVELS[pick]
            if pick == len(RECALL_LEVELS) - 1:
                n_keys, n_filler = int(rng.integers(4, n_keys + 1)), int(rng.integers(0, n_filler + 1))
            return texts.recall_training_passage(rng, n_keys, n_filler)

        rows += [self._packed(problem) for _ in range(n_math)]
        rows += [self._packed(passage) for _ in range(n_recall)]
        return np.array(rows, dtype=np.int64), n_recall

    def answers(self, ids: np.ndarray) -> np.ndarray:
        """Mask over a recall row's targets: the value digits after the `?` line of each passage."""
        mask = np.zeros(len(ids), dtype=bool)
        question = self._encode("?")[0]
        asked = False
        for i, token in enumerate(ids):
            if token == 0:
                asked = False
            elif token == question:
                asked = True
            elif token == self.equals and asked:
                mask[i + 1 : i + 3] = True
        return mask


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


@dataclasses.dataclass
class State:
    """What a checkpoint holds beside the tensors."""

    step: int = 0
    level: int = 0
    recall_accuracy: float = 0.0
    wall_s: float = 0.0
    log: list[dict[str, Any]] = dataclasses.field(default_factory=list)


def save_checkpoint(folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, state: State, recipe: Recipe) -> None:
    """One safetensors file (weights, Adam moments) with the rest as its metadata, renamed into place."""
    tensors = {f"model.{name}": p.detach() for name, p in model.named_parameters()}
    for name, p in model.named_parameters():
        for key, value in optimizer.state.get(p, {}).items():
            tensors[f"adam.{name}.{key}"] = value
    aside = folder / "checkpoint.safetensors.part"
    meta = {"state": json.dumps(dataclasses.asdict(state)), "recipe": json.dumps(dataclasses.asdict(recipe))}
    save_file({k: v.contiguous() for k, v in tensors.items()}, aside, metadata=meta)
    os.replace(aside, folder / "checkpoint.safetensors")


def load_checkpoint(folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, recipe: Recipe) -> State:
    """The state to continue from. Raises ValueError if the checkpoint was made with another recipe."""
    path = folder / "checkpoint.safetensors"
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


def train(
    out: Path,
    recipe: Recipe,
    minutes: float | None = None,
    report: Callable[[dict[str, Any]], None] = lambda row: None,
    checkpoint_every_s: float = 300.0,
) -> bool:
    """Trains into `out` (checkpoint, then the Hugging Face folder); True when finished, False when `minutes` ran out.

    `report` gets one row per 100 steps: step, tokens, the three losses in nats/token, recall level, tokens/s.
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
    started, saved = time.monotonic() - state.wall_s, time.monotonic()
    sums, since = np.zeros(4), time.monotonic()
    try:
        while state.step < recipe.n_steps:
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
            optimizer.step()
            _advance_level(state, batches, rows[-n_recall:], output.logits[-n_recall:])
            state.step += 1
            row_losses = losses.detach().mean(1).numpy()
            n_text = len(rows) - n_recall - len(rows) // 4
            sums += [row_losses[:n_text].mean(), row_losses[n_text:-n_recall].mean(), row_losses[-n_recall:].mean(), balance.item()]
            if state.step % 100 == 0 or state.step == recipe.n_steps:
                n = (state.step - 1) % 100 + 1
                now = time.monotonic()
                state.wall_s = now - started
                state.log.append(
                    {
                        "step": state.step,
                        "tokens": state.step * recipe.batch_rows * recipe.context,
                        "text_nats": round(sums[0] / n, 4),
                        "math_nats": round(sums[1] / n, 4),
                        "recall_nats": round(sums[2] / n, 4),
                        "balance": round(sums[3] / n, 4),
                        "recall_level": state.level,
                        "recall_accuracy": round(state.recall_accuracy, 4),
                        "tokens_per_s": round(n * recipe.batch_rows * recipe.context / (now - since)),
                        "wall_s": round(state.wall_s),
                    }
                )
                report(state.log[-1])
                sums, since = np.zeros(4), now
                if now - saved > checkpoint_every_s:
                    save_checkpoint(out, model, optimizer, state, recipe)
                    saved = now
                if minutes is not None and state.wall_s / 60 > minutes and state.step < recipe.n_steps:
                    return False
    finally:
        save_checkpoint(out, model, optimizer, state, recipe)
    model.eval()
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    return True


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


def bits_per_byte(nats: float, n_bytes: int) -> float:
    """Total negative log-likelihood in nats over `n_bytes` of UTF-8 text, as bits per byte."""
    return nats / math.log(2) / n_bytes
