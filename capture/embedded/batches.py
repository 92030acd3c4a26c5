"""Training batches: library text, math and recall, each batch a pure function of (seed, step, recall level)."""

from collections.abc import Callable

import numpy as np
from transformers import PreTrainedTokenizerFast

from tokentape.capture.embedded import texts
from tokentape.capture.embedded.recipe import Recipe

# (keys, filler lines) of a recall passage, easiest first. The level rises when most answers at it come out right.
RECALL_LEVELS = ((2, 0), (4, 0), (8, 0), (12, 0), (12, 8), (12, 16), (12, 24), (12, 33))
DENSE_LEVELS = 3  # half of each batch is recall until this level is passed, a quarter after


class Batches:
    """Rows of `context + 1` token ids: library text first, then math, then recall."""

    def __init__(self, recipe: Recipe, tokenizer: PreTrainedTokenizerFast) -> None:
        self.recipe, self.tokenizer = recipe, tokenizer
        order = np.random.default_rng([recipe.seed, 3])
        files = [item.prompt for item in texts.code_files(False) + texts.doc_topics(False)]
        stream: list[int] = []
        for i in order.permutation(len(files)):
            stream += [0, *self._encode(files[i])]
        self.text = np.array(stream, dtype=np.int64)
        self.equals = self._encode("=")[0]

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids

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
        starts = rng.integers(0, len(self.text) - width, size=n_rows - n_recall - n_math)
        rows = [self.text[start : start + width].tolist() for start in starts]
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
