"""What any decisions inside a live model do to its quality: perplexity, KL and acceptance on text, exact match on items.

Text is cut into windows; the first tokens of each are its prompt, the rest are decoded with the decisions in the loop, teacher-
forced, one by one, each window with caches of its own. Every decoded token but the first, whose logits still come from the
prompt, is compared with the unmodified model on the same window. Items are answered greedily.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F

from tokentape.capture import models
from tokentape.capture.applied import AppliedTape
from tokentape.capture.datasets import items, prompt_ids
from tokentape.capture.evaluate import ALL_DOCUMENTS, LOGIT_ELEMENTS, Report, answered, items_of, quality_row
from tokentape.capture.live.loop import Outcome, Request, Sampling, decode
from tokentape.capture.live.sampling import perplexity_of
from tokentape.capture.live.slots import Inside

Told = Callable[[int, int], None]  # windows done, of how many
DEFAULT_WINDOWS = 16


@dataclass(frozen=True, kw_only=True)
class Cut:
    """What a run measures on: for each seed n_items windows of text, or so many items that have an answer."""

    prompt_tokens: int = 64
    decode_tokens: int = 192
    n_items: int = DEFAULT_WINDOWS

    def __post_init__(self) -> None:
        if min(self.prompt_tokens, self.n_items) < 1 or self.decode_tokens < 2:
            raise ValueError("a window needs a prompt of at least 1 token and 2 to decode")


class Tried(Cut, ABC):
    """What runs inside a model and how it is tried. name, parameters: as table `quality` holds them."""

    name: str
    parameters: dict[str, Any]

    @abstractmethod
    def inside(self, loaded: models.Loaded, seed: int) -> Inside:
        """It in the model; seed: of draws."""

    def read(
        self, loaded: models.Loaded, dataset: str, seed: int, inside: Inside, told: Told, tape: AppliedTape | None = None
    ) -> dict[str, Any]:
        """What it does to the seed's windows of text."""
        return on_text(loaded, windows(loaded, dataset, self, seed), self, inside, told, tape)


def evaluate_inside(
    loaded: models.Loaded,
    dataset: str,
    run: Tried,
    seed: int = 0,
    progress: Report = lambda done, total, name: None,
    tape: AppliedTape | None = None,
    inside: Inside | None = None,
    right: list[bool] | None = None,
) -> dict[str, Any]:
    """A row of table `quality`. seed: of draws, and which windows or items. inside: `run` in the model, where that is made.
    right: gets whether each item is answered right.

    tape: also records natural and applied routing (capture/applied.py); slower, requests run one by one. The caller finishes it.
    Raises ValueError for a data set too short for a window or seed, or of which only some items have an answer.
    """
    made = inside or run.inside(loaded, seed)
    found = items_of(dataset, run.n_items, seed)
    with models.suitable_threads(loaded.model):
        if found[0].answer is None:
            scores = run.read(loaded, dataset, seed, made, lambda n, of: progress(n, of, dataset), tape)
        else:
            with made:
                of = partial(run_in, inside=made, tape=tape)
                told, scores = answered(loaded, found, dataset, progress, of)
            if right is not None:
                right += told
    return quality_row(loaded, run.name, run.parameters, dataset, seed, made.measured | scores)


def run_in(loaded: models.Loaded, requests: Sequence[Request], inside: Inside, tape: AppliedTape | None = None) -> list[Outcome]:
    """Requests to their end, greedily or as they are forced, with what they were chosen by; recorded where there is a tape."""
    if tape is not None:
        return tape.decode(inside, loaded, requests)
    is_forced = requests[0].forced is not None
    return decode(loaded.model, requests, Sampling(), loaded.stop_ids, loaded.pad_id, inside, with_logits=is_forced)


def windows(loaded: models.Loaded, dataset: str, run: Cut, seed: int) -> list[list[int]]:
    """The seed's own windows of prompt_tokens + decode_tokens, cut from the documents one after the other.

    Raises ValueError if the data set has none left for this seed, where they are longer than the model's context, and for a model
    that reads on before it foretells.
    """
    models.refuse_unless_causal(loaded, "give a causal language model")
    size, wanted = run.prompt_tokens + run.decode_tokens, run.n_items * (seed + 1)
    if size > (context := loaded.source.context or size):
        raise ValueError(f"windows of {size} tokens exceed the context ({context}); lower prompt_tokens or decode_tokens")
    cut: list[list[int]] = []
    for item in items(dataset, ALL_DOCUMENTS):
        ids = prompt_ids(item, loaded.tokenizer, loaded.source.model_id)
        cut += [ids[start : start + size] for start in range(0, len(ids) - size + 1, size)]
        if len(cut) >= wanted:
            break
    mine = cut[run.n_items * seed : wanted]
    if not mine:
        raise ValueError(
            f"data set {dataset} has {len(cut)} windows of {size} tokens, none for seed {seed}; ask for fewer or shorter ones"
        )
    return mine


def requests_of(batch: list[list[int]], run: Cut, first: int = 0) -> list[Request]:
    """Windows as teacher-forced requests, numbered from `first`."""
    n = run.prompt_tokens
    return [Request(i, tuple(ids[:n]), run.decode_tokens, forced=tuple(ids[n:])) for i, ids in enumerate(batch, first)]


def compared(ours: torch.Tensor, theirs: torch.Tensor, targets: torch.Tensor) -> dict[str, float]:
    """Sums over tokens: nll of the targets (windows, n), KL and acceptance of log probabilities (windows, n, V)."""
    return {
        "nll": F.nll_loss(ours.flatten(0, 1), targets.flatten(), reduction="sum").item(),
        "kl": F.kl_div(ours, theirs, reduction="sum", log_target=True).item(),
        "acceptance": torch.minimum(ours.exp(), theirs.exp()).sum().item(),
    }


def means(sums: Counter[str], n_items: int, n_tokens: int) -> dict[str, Any]:
    """Columns of table `quality` from what was summed over tokens."""
    shares = {name: total / n_tokens for name, total in sums.items()}
    return {"perplexity": perplexity_of(shares.pop("nll")), **shares, "n_items": n_items, "n_tokens": n_tokens}


@torch.inference_mode()
def on_text(
    loaded: models.Loaded,
    chosen: list[list[int]],
    run: Cut,
    inside: Inside,
    progress: Told = lambda done, total: None,
    tape: AppliedTape | None = None,
) -> dict[str, Any]:
    """Perplexity, KL and acceptance on windows with what is `inside`; its slots count the rest."""
    vocabulary = loaded.model.config.get_text_config().vocab_size
    per_batch = 1 if tape else max(1, LOGIT_ELEMENTS // (vocabulary * run.decode_tokens))
    sums, n_tokens = Counter[str](), 0
    for start in range(0, len(chosen), per_batch):
        batch = torch.tensor(chosen[start : start + per_batch], device=models.device_of(loaded.model))
        plain = loaded.model(input_ids=batch, use_cache=False).logits[:, run.prompt_tokens : -1].float()
        with inside:
            outcomes = run_in(loaded, requests_of(chosen[start : start + per_batch], run, start), inside, tape)
        applied = torch.stack([o.logits[1:] for o in outcomes if o.logits is not None])
        targets = batch[:, run.prompt_tokens + 1 :]
        sums.update(compared(applied.log_softmax(-1), plain.log_softmax(-1), targets))
        n_tokens += targets.numel()
        progress(min(start + per_batch, len(chosen)), len(chosen))
    return means(sums, len(chosen), n_tokens)
