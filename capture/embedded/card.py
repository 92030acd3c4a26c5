"""The shipped model's papers: a card for people, the training log as CSV, and a manifest of hashes."""

import dataclasses
import hashlib
import json
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import polars as pl

from tokentape.capture.embedded import texts
from tokentape.capture.embedded.recipe import Recipe
from tokentape.capture.embedded.train import CHECKPOINT
from tokentape.capture.evaluate import evaluate

CARD, LOG, MANIFEST = "README.md", "training_log.csv", "manifest.json"
TEMPLATE = Path(__file__).with_name("card.md")


def write_card(folder: Path, recipe: Recipe, log: list[dict[str, Any]]) -> None:
    """Measures the model in `folder` on its four data sets and writes card, log and manifest beside it."""
    quality = evaluate(str(folder), list(texts.SHIPPED))
    held_out = {"code": texts.code_files(held_out=True), "docs": texts.doc_topics(held_out=True)}
    n_bytes = {name: sum(len(item.prompt.encode()) for item in items) for name, items in held_out.items()}
    pl.DataFrame(log).write_csv(folder / LOG)
    by_name = {row["dataset"]: row for row in quality}
    together = sum(by_name[name]["bits_per_byte"] * n for name, n in n_bytes.items()) / sum(n_bytes.values())
    versions = {"python": platform.python_version(), **{p: metadata.version(p) for p in ("torch", "transformers", "tokenizers")}}
    every = max(1, len(log) // 12)
    logged = ("text_nats", "math_nats", "recall_nats", "recall_level", "tokens_per_s")
    shown = [row for i, row in enumerate(log, 1) if i % every == 0 or i == len(log)]
    lines = [f"| {row['tokens'] / 1e6:.1f} M | {' | '.join(str(row[name]) for name in logged)} |" for row in shown]
    (folder / CARD).write_text(
        TEMPLATE.read_text(encoding="utf-8").format(
            python=versions["python"],
            quality="\n".join(_quality_line(row) for row in quality),
            together=together,
            log=LOG,
            every=every,
            rows="\n".join(lines),
            versions=", ".join(f"{name} {version}" for name, version in versions.items()),
            **{key: getattr(recipe, key) for key in ("tokens", "seed", "peak_lr", "batch_rows", "context")},
        )
    )
    others = (CARD, MANIFEST, CHECKPOINT)  # which from_pretrained does not read
    files = sorted(p for p in folder.iterdir() if p.is_file() and p.name not in others)
    manifest = {
        "files": {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in files},
        "recipe": dataclasses.asdict(recipe),
        "tokens": log[-1]["tokens"],
        "bits_per_byte_code_and_docs": round(together, 4),
        "exact_match": {name: by_name[name]["accuracy"] for name in ("math", "recall")},
        "versions": versions,
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")


def _quality_line(row: dict[str, Any]) -> str:
    bits = "" if row["bits_per_byte"] is None else f"{row['bits_per_byte']:.3f}"
    exact = "" if row["accuracy"] is None else f"{100 * row['accuracy']:.1f} %"
    return f"| {row['dataset']} | {bits} | {exact} | {row['n_items']} |"
