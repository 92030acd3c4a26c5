"""Layer inputs that AERP stores in place of keys and values, and keys and values computed anew from them, in any family.

The attention module itself runs again on the stored rows, with a cache that takes what it is handed and stops it: projection,
norms and rotation at the original positions are the family's own. Rows that enter as they did at first give the same bits.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from transformers import Cache, PreTrainedModel


class _Handed(Exception):
    """Keys and values, which reached the cache; the rest of attention is not needed."""


class _Taker:
    """A cache that only takes."""

    def update(self, keys: torch.Tensor, values: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        raise _Handed(keys, values)

    def get_seq_length(self, *args: Any) -> int:
        """For queries that are scaled by it, which nobody reads."""
        return 0


class _Rows(int):
    """Stands for values that differ by token: their place among an `Inputs`' rows."""


def attention_modules(model: PreTrainedModel) -> dict[int, nn.Module]:
    """By layer. Raises ValueError where there are none that know it."""
    of = (m for m in model.modules() if type(m).__name__.endswith("Attention") and isinstance(getattr(m, "layer_idx", None), int))
    found = {module.layer_idx: module for module in of}
    if not found:
        raise ValueError(f"{type(model).__name__}: no attention modules that know their layer; nothing can be recomputed")
    return found  # type: ignore[return-value]


class Inputs:
    """What one attention module was given for every token of a batch. rows: (batch, tokens, ...) each, the layer input first."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.rows: list[torch.Tensor] = []
        self._call: dict[str, Any] = {}  # of the first pass, `_Rows` in place of what differs by token

    def add(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The next tokens, as the module is called with them."""
        given = {"hidden_states": args[0] if args else kwargs["hidden_states"], **kwargs, "attention_mask": None}
        batch, n = given["hidden_states"].shape[:2]
        found: list[torch.Tensor] = []

        def taken(value: Any, like: Any) -> Any:
            """like: the same of the first pass, None in it."""
            if isinstance(value, tuple):
                return tuple(taken(one, like[i] if like else None) for i, one in enumerate(value))
            is_row = isinstance(value, torch.Tensor) and value.ndim >= 2 and value.shape[1] == n
            if isinstance(value, torch.Tensor) and n > 1 and n in value.shape and not is_row:
                raise ValueError(f"{type(self.module).__name__} takes more of tokens than rows, and is not run again; take aep")
            if isinstance(like, _Rows) or (is_row and not self.rows):
                found.append(value.detach().expand(batch, *value.shape[1:]))
                return _Rows(len(found) - 1)
            return value

        call = {name: taken(value, self._call.get(name)) for name, value in given.items()}
        self._call = self._call or call
        self.rows = [torch.cat(pair, dim=1) for pair in zip(self.rows, found, strict=True)] if self.rows else found

    def keep(self, n: int, more: Sequence[int] = ()) -> None:
        """The first n tokens stay, and those so many after them."""
        at = torch.tensor([*range(n), *(n + one for one in more)], dtype=torch.int64)
        self.rows = [rows[:, at.to(rows.device)] for rows in self.rows]

    def keys_values(self, at: torch.Tensor, hidden: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """(batch, heads, m, width) of the tokens at (batch, m), as a cache gets them. hidden (batch, m, C): what was stored of
        their layer inputs, where it is not what was given."""
        rows = [torch.take_along_dim(of, at.view(*at.shape, *[1] * (of.ndim - 2)).to(of.device), dim=1) for of in self.rows]
        if hidden is not None:
            rows[0] = hidden

        def filled(value: Any) -> Any:
            if isinstance(value, tuple):
                return tuple(map(filled, value))
            return rows[value] if isinstance(value, _Rows) else _Taker() if isinstance(value, Cache) else value

        try:
            self.module.forward(**{name: filled(value) for name, value in self._call.items()})
        except _Handed as handed:
            return handed.args
        raise ValueError(f"{type(self.module).__name__} handed no keys and values to the cache")
