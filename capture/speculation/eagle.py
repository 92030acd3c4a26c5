"""EAGLE's head for the embedded model: one decoder layer that foretells the target's next hidden state, of which the target's
own output head makes tokens.

Position t takes the token there and the target's last hidden state (normalised, what its output head reads) of position t - 1.
Past the last token that is decided it goes on from its own output, as EAGLE does (arXiv 2401.15077, section 4), and was trained
so (arXiv 2503.01840, section 3.2). Input table and output head are the target's. It is the head of one model and refuses others.
"""

import hashlib
import json
from contextlib import ExitStack
from typing import Any
from weakref import WeakKeyDictionary

import torch
from safetensors.torch import load
from torch import nn
from transformers import DynamicCache, PreTrainedModel, Qwen3Config, Qwen3Model

from tokentape.capture.checkpoint import EMBEDDED_PATH
from tokentape.capture.live.sampling import Sampling
from tokentape.capture.live.slots import Pass
from tokentape.capture.live.texts import CACHE, Text, Watch
from tokentape.capture.models import Loaded, Source
from tokentape.capture.speculation.drafters import Coming, Drafter, grow_with
from tokentape.policies.speculation.tree import Draft, Shape

FOLDER = EMBEDDED_PATH.parent / "eagle"
WEIGHTS, MANIFEST = "head.safetensors", "manifest.json"


class Head(nn.Module):
    """Of a model with this config: what joins a token and a state, and one dense layer of the model's own attention."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        same = ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "rms_norm_eps", "rope_parameters")
        own = {name: getattr(config, name) for name in (*same, "intermediate_size", "max_position_embeddings")}
        self.join = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self.body = Qwen3Model(Qwen3Config(vocab_size=1, num_hidden_layers=1, **own))
        del self.body.embed_tokens  # the target's

    def forward(self, tokens: torch.Tensor, before: torch.Tensor, **options: Any) -> torch.Tensor:
        """(rows, n, hidden) states foretold. tokens: embedded, before: the states one position earlier; both of that shape."""
        found = self.body(inputs_embeds=self.join(torch.cat([tokens, before], dim=-1)), **options)
        return found.last_hidden_state  # type: ignore[no-any-return]  # transformers types no output


def manifest_for(source: Source) -> dict[str, Any]:
    """Of the head that ships. Raises ValueError for a model that it was not trained for."""
    manifest: dict[str, Any] = json.loads((FOLDER / MANIFEST).read_text())
    if source.fingerprint != manifest["target"]:
        raise ValueError(f"--draft eagle is a head of the embedded model's, not {source.model_id}'s; give elastic or quant")
    return manifest


def shipped(target: Loaded) -> Head:
    """Raises ValueError for another model's target, and for weights that are not those of the manifest."""
    wanted, path = manifest_for(target.source)["files"][WEIGHTS], FOLDER / WEIGHTS
    held = path.read_bytes()
    if hashlib.sha256(held).hexdigest() != wanted:
        raise ValueError(f"{path} is not what {MANIFEST} beside it says: install tokentape again")
    head = Head(target.model.config)
    head.load_state_dict({name: weights.float() for name, weights in load(held).items()})
    return head.to(target.model.device, target.model.dtype).eval()


class HeadText(Text):
    """The head's cache of one request. states: (n, hidden) of the target, of every token that is decided but the last."""

    draft: Draft

    def __init__(self, target: PreTrainedModel, head: Head, watch: Watch) -> None:
        super().__init__(target, watch, DynamicCache())
        self.head = head
        self.states = torch.zeros(1, self.config.hidden_size, dtype=target.dtype, device=self.device)  # before the first: none
        self._foretold: dict[int, torch.Tensor] = {}  # node -> (hidden,)

    def run(self, ids: torch.Tensor, coming: Pass, logits_to_keep: int = 0, **options: Any) -> torch.Tensor:
        """As Text. Of the root, and what came before it unread, the target's states; of other nodes the parent's as foretold."""
        self.watch.before(coming)
        before = self.states[self.length :]
        if coming.nodes != [0]:
            before = torch.stack([self._foretold[self.draft.parents[node]] for node in coming.nodes])
        states = self.head(self.model.get_input_embeddings()(ids), before[None], use_cache=True, **{CACHE: self.cache}, **options)
        self._foretold |= dict(zip(coming.nodes, states[0, -len(coming.nodes) :], strict=True))
        self.length += ids.shape[1]
        self.watch.after(coming)
        return self.model.get_output_embeddings()(states[:, -logits_to_keep:])  # type: ignore[no-any-return]


class EagleDrafter(Drafter):
    """Watches the target's passes for their states; drafts with its head."""

    def __init__(self, target: Loaded, shape: Shape, head: Head | None = None) -> None:
        self.model, self.shape, self.head = target.model, shape, head or shipped(target)
        self._texts: WeakKeyDictionary[Text, HeadText] = WeakKeyDictionary()  # by the target's

    def _enter(self, stack: ExitStack) -> None:
        stack.callback(self._texts.clear)
        stack.enter_context(self.model.get_decoder().register_forward_hook(self._see))

    def _see(self, module: nn.Module, args: Any, output: Any) -> None:
        self._states = output.last_hidden_state[0]  # (n, hidden) of the pass that ran last

    def after(self, done: Pass) -> None:
        if done.kind == "prefill" and done.text is not None:
            own = self._texts.setdefault(done.text, HeadText(self.model, self.head, done.text.watch))
            own.states = torch.cat([own.states, self._states])

    def commit(self, text: Text, kept: list[int]) -> None:
        own = self._texts[text]
        own.states = torch.cat([own.states, self._states[kept]])

    def draft(self, request_id: int, ids: list[int], text: Text, draft: Draft, sampling: Sampling, coming: Coming) -> None:
        own = self._texts[text]
        own.draft = draft
        grow_with(own, draft, sampling, coming, ids[own.length : -1])
