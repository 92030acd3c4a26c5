"""Where a model's MoE layers are: the module that holds a layer's routed experts, and the router beside it.

Found by what modules are, not by what they are called: whatever holds weights of many experts makes its parent a MoE block, and a
block without a router, or a layer with two of them, is refused by name. So a MoE layer cannot go missing; that its router says
what its experts are then given is checked by capture/measure.py on a pass.
"""

import re
from dataclasses import dataclass

from torch import nn

_ROUTER = re.compile(r"(Router|Gate|Gating)$", re.IGNORECASE)
# Beside the text model of a multimodal checkpoint, and heads that a plain forward pass leaves out.
_ELSEWHERE = re.compile(r"(^|[._])(vision|visual|audio|mtp|nextn)", re.IGNORECASE)


@dataclass(frozen=True)
class MoeBlock:
    """A MoE layer: `module` is the parent of `router` and of `experts`; name: of the module within the model."""

    name: str
    module: nn.Module
    router: nn.Module
    experts: nn.Module

    @property
    def top_k(self) -> int:
        """Experts per token; the router, its block or their config says how many."""
        told = (getattr(self.router, "top_k", None), getattr(self.module, "top_k", None))
        found = next((k for k in told if k is not None), None)
        return int(found if found is not None else self.router.config.top_k_experts)  # type: ignore[union-attr, arg-type]

    @property
    def n_weighted(self) -> int:
        """Experts that have weights; 0 where only a forward pass can tell."""
        stacked = [t.shape[0] for t in (*self.experts.parameters(), *self.experts.buffers()) if t.ndim >= 3]
        return min(stacked) if stacked else len(self.experts) if isinstance(self.experts, nn.ModuleList) else 0


def layer_of(module_name: str) -> int:
    """Absolute layer of a module path: `model.layers.3.mlp.gate` -> 3. Raises ValueError where the path holds no number."""
    for part in module_name.split("."):
        if part.isdigit():
            return int(part)
    raise ValueError(f"router {module_name!r}: its path names no layer number; this model's layout is not known")


def find_blocks(model: nn.Module) -> dict[int, MoeBlock]:
    """Absolute layer -> MoE block of the text model, by rising layer; empty for a dense model.

    Raises ValueError naming the layer whose experts have no router beside them, or more than one.
    """
    modules = dict(model.named_modules())
    parents = {name.rpartition(".")[0] for name, module in modules.items() if _holds_experts(name, module)}
    parents = {name for name in parents if not _ELSEWHERE.search(name)}
    # An experts module may keep its tensors in parts: the outermost one counts.
    parents -= {name for name in parents if any(name.startswith(f"{other}.experts") for other in parents if other != name)}
    found: dict[int, MoeBlock] = {}
    for name in sorted(parents):
        layer, block = layer_of(name), _block(name, modules[name])
        if layer in found:
            both = f"{found[layer].name} and {name}"
            raise ValueError(f"layer {layer} has two routers ({both}); a tape holds one choice of experts per layer and token")
        found[layer] = block
    return dict(sorted(found.items()))


def _holds_experts(name: str, module: nn.Module) -> bool:
    last = name.rpartition(".")[2]
    if "shared" in last:
        return False
    if last == "experts" or type(module).__name__.endswith("Experts"):
        return True
    n_experts = getattr(module, "num_experts", None)
    stacked = [w for w in module.parameters(recurse=False) if w.ndim >= 3]
    looked_up = [child.weight for child in module.children() if isinstance(child, nn.Embedding)]  # an expert is a table's row
    return bool(n_experts) and any(w.shape[0] == n_experts for w in (*stacked, *looked_up))


def _block(name: str, parent: nn.Module) -> MoeBlock:
    experts = [c for n, c in parent.named_children() if _holds_experts(f"{name}.{n}", c)]
    routers = [
        c
        for n, c in parent.named_children()
        if c not in experts and (n in ("gate", "router") or _ROUTER.search(type(c).__name__))
    ]
    if len(routers) != 1:
        how_many = "several routers" if routers else "no router"
        raise ValueError(
            f"layer {layer_of(name)}: {type(parent).__name__} ({name}) holds experts but {how_many} beside them; "
            "how it chooses is not known, so nothing is recorded"
        )
    return MoeBlock(name, parent, routers[0], experts[0])
