"""Prompt lookup: what followed the last tokens when they stood in the text before. No model.

Source: prompt lookup decoding, as transformers' `prompt_lookup_num_tokens` and vLLM's ngram method do it.
"""

from collections.abc import Sequence

MAX_NGRAM = 3


def lookup(ids: Sequence[int], n: int, longest: int = MAX_NGRAM) -> list[int]:
    """Up to n tokens that followed the latest earlier occurrence of the longest matching suffix of `ids`; empty: none matches."""
    text = list(ids)
    for size in range(min(longest, len(text) - 1), 0, -1):
        suffix = text[-size:]
        for start in range(len(text) - size - 1, -1, -1):
            if text[start : start + size] == suffix:
                return text[start + size : start + size + n]
    return []
