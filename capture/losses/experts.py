"""One routed expert of a live model as two matrices, whatever its family, and the same expert from replicas of them.

Every family of transformers 5.21+ holds a layer's experts as stacks with gate and up in one, told apart by the module's own gate
function; GPT-OSS stores inputs first and has biases, which stay as they are.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from tokentape.capture.live.copies import inputs_last
from tokentape.capture.losses.gptq import Gptq
from tokentape.policies.replicas import GROUP, WIDTHS, levels

METHODS = ("gptq", "rtn")


@dataclass(frozen=True)
class Expert:
    """up (I or 2 I, H), down (H, I): f32, inputs last; biases or None; activate: from up's outputs to down's inputs."""

    up: torch.Tensor
    down: torch.Tensor
    up_bias: torch.Tensor | None
    down_bias: torch.Tensor | None
    activate: Callable[[torch.Tensor], torch.Tensor]

    def inner(self, x: torch.Tensor) -> torch.Tensor:
        """What the down matrix sees of x (n, H) f32: (n, I)."""
        return self.activate(nn.functional.linear(x, self.up, self.up_bias))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """(n, H), not weighted by the gate."""
        return nn.functional.linear(self.inner(x), self.down, self.down_bias)


def matrices_of(experts: nn.Module) -> dict[str, str]:
    """Which stack (E, ...) holds `up` and `down`. Raises ValueError for a layout that is not known."""
    names = {"up": "gate_up_proj" if getattr(experts, "has_gate", False) else "up_proj", "down": "down_proj"}
    known = all(isinstance(getattr(experts, name, None), nn.Parameter) for name in names.values())
    if not known or getattr(experts, "has_post_expert_norm", False):
        raise ValueError(f"{type(experts).__name__}: its layout is not known; losses need stacks gate_up_proj and down_proj")
    return names


def expert_of(experts: nn.Module, index: int) -> Expert:
    """A copy of one expert. Raises ValueError for a layout that is not known, and for weights that are not floating point."""
    found: dict[str, Any] = {}
    for part, name in matrices_of(experts).items():
        bias = getattr(experts, f"{name}_bias", None)
        found[part] = inputs_last(experts, name)[index].float().contiguous()
        found[f"{part}_bias"] = None if bias is None else bias[index].detach().float()
    has_gate = getattr(experts, "has_gate", False)
    return Expert(**found, activate=getattr(experts, "_apply_gate" if has_gate else "act_fn"))


def replicas(expert: Expert, x: torch.Tensor | None, method: str, group: int = GROUP) -> Iterator[tuple[int, Expert]]:
    """(bits, the expert from replicas of that width) for 1 to 4 bits. x (n, H) f32: calibration inputs, which rtn does without.

    gptq's down matrix sees what the rounded up matrix yields, and is refitted to the expert's own output before it is rounded.
    With activations at full precision, as in section 4.4 of CXL-NDP's specification, gptq at 1 bit loses more than rtn in a
    quarter of the embedded model's experts: the rounded up matrix feeds down something else.
    """
    if method not in METHODS:
        raise ValueError(f"unknown quantiser {method!r}; known: {', '.join(METHODS)}")
    if method == "rtn":
        for bits in WIDTHS:
            up, down = (levels(w, bits, group).nearest(w) for w in (expert.up, expert.down))
            yield bits, replace(expert, up=up, down=down)
        return
    assert x is not None
    before_up, meant = Gptq(x), expert.inner(x)
    for bits in WIDTHS:
        rounded_up = replace(expert, up=before_up(expert.up, levels(expert.up, bits, group)))
        before_down = Gptq(rounded_up.inner(x))
        down = before_down.refitted(expert.down, meant)
        yield bits, replace(rounded_up, down=before_down(down, levels(down, bits, group)))
