"""The Layered Prefill page on what is read: experts that tokens touch together, and bytes and time of a prompt in chunks."""

from __future__ import annotations

import statistics
from itertools import cycle

import polars as pl

from tokentape.dashboards import theme
from tokentape.dashboards.engine import Ask, Control, Drawn, options, sentences, some, turn_of
from tokentape.dashboards.layered_prefill import rows
from tokentape.dashboards.layered_prefill.words import PARTS, TOKENS_OF, of_series
from tokentape.dashboards.units import joined, percent, quantity, signed

# Forms that a curve may have; the first that is there is the one the others are compared with.
FORMS = {"recorded": "recorded", "recorded_curve": "recorded", "paper_table": "the paper's Table 1", "independent": "independent"}
PAPER, ALL_LAYERS = "layered_prefill", "all"  # as rows name a source and a band
BANDS = {ALL_LAYERS: 0, "first third": 1, "middle third": 2, "last third": 3}
PROMPT = "one prompt"  # the series


def coverage(ask: Ask) -> Drawn:
    """Coverage of the paper and of the first tapes."""
    found = some(_named(ask("coverage"), ask.size))
    routed = found["routed"].unique(maintain_order=True).to_list()
    lines = found["line"].unique(maintain_order=True).to_list()
    spare = cycle([theme.BLUE, theme.SKY, theme.GREEN, theme.PURPLE, theme.ORANGE])
    colours = {"the paper's Table 1": theme.VERMILLION, "independent": theme.QUIET}
    own = {
        "lines": lines,
        "colours": [colours[name] if name in colours else next(spare) for name in lines],
        "dashes": [[1, 0] if name.startswith(("recorded", "the paper")) else [6, 4] for name in lines],
    }
    return Drawn(
        {"coverage": found},
        sentences(found, ["routed"], coverage_answer),
        own,
        controls=(Control("routed", "Coverage of"),),
        choices=options("routed", routed),
    )


def chunks(ask: Ask) -> Drawn:
    """One prompt alone: bytes and time against the chunk."""
    found = some(of_series(ask.made(rows.points), PROMPT))
    chunked = pl.col("chunk_tokens").is_not_null()
    size = pl.when(chunked).then(pl.col("chunk_tokens").cast(pl.String)).otherwise("system")
    most = found.filter(chunked).group_by("setting").len().sort("len", "setting")["setting"].to_list()[-1:]
    told = found.filter(pl.col("setting").is_in(most)).with_columns(size=size)
    told = told.sort(chunked, "chunk_tokens", descending=[True, False])
    names = [f"{part}_frac" for part in PARTS if f"{part}_frac" in told.columns]
    kept = told.select("setting", "system", "size", "chunk_tokens", "expert_bytes_per_request", "ttft_mean_s", *names)
    return Drawn({"chunks": kept}, {"": chunk_answer(kept)})


def _named(found: pl.DataFrame, size: int) -> pl.DataFrame:
    """Rows of the first `size` sources with the words of their curve and panel; the paper's first."""
    told = found.filter((pl.col("band") == ALL_LAYERS) | pl.col("form").str.starts_with("recorded")).with_columns(
        routed=pl.when(pl.col("source") == PAPER).then(pl.format("{} (the paper)", "model")).otherwise("source"),
        line=pl.format("{}{}", pl.col("form").replace(FORMS), _band()),
        panel=pl.col("tokens_of").replace(TOKENS_OF),
        place=turn_of("form", FORMS),
        depth=pl.col("band").replace_strict(BANDS, default=len(BANDS), return_dtype=pl.Int64),
        is_paper=pl.col("source") == PAPER,
    )
    told = told.sort("is_paper", "routed", "place", "depth", "line", "tokens_of", "n_tokens", descending=[True, *[False] * 6])
    kept = told["routed"].unique(maintain_order=True).head(size)
    return told.filter(pl.col("routed").is_in(kept.implode())).drop("is_paper", "source", "depth")


def _band() -> pl.Expr:
    """A band of layers, as it follows the name of a curve."""
    return pl.when(pl.col("band") == ALL_LAYERS).then(pl.lit("")).otherwise(pl.format(", {}", "band"))


def coverage_answer(found: pl.DataFrame) -> str:
    """Every other form's error, mean and largest, against the first form that is there, for decode tokens of one model."""
    decode = found.filter((pl.col("tokens_of") == "decode") & (pl.col("n_tokens") > 1))
    if decode.is_empty():
        return "Decode tokens are not measured."
    first = decode["place"].min()
    measured = decode.filter((pl.col("place") == first) & (pl.col("band") == ALL_LAYERS)).sort("n_tokens")
    level = measured.group_by("n_tokens").agg(pl.mean("covered").alias("level"))
    said = []
    others = (
        decode.filter(pl.col("place") > first)
        .join(level, on="n_tokens")
        .with_columns(error=pl.col("covered") / pl.col("level") - 1)
    )
    for (line,), of in others.group_by(["line"], maintain_order=True):
        worst = of.sort(pl.col("error").abs(), "n_tokens").row(-1, named=True)
        said.append(
            f"{line} is off by {percent(statistics.mean(of['error'].abs().to_list()), 0)} on average and "
            f"{signed(worst['error'])} at most ({worst['n_tokens']:,} tokens: {percent(worst['covered'])} for "
            f"{percent(worst['level'])})"
        )
    near = [row for row in measured.to_dicts() if row["n_tokens"] in (8, 32, 128)] or measured.tail(1).to_dicts()
    touched = f"{joined([percent(row['covered']) for row in near])} of a layer's experts"
    touched += f" for {joined([str(row['n_tokens']) for row in near])} tokens"
    against = f" Against it, {joined(said)}." if said else ""
    return f"Decode, {FORMS.get(measured['form'][0], measured['form'][0])}: {touched}.{against}"


def chunk_answer(found: pl.DataFrame) -> str:
    """Bytes, time and the MoE's share at the least and the largest chunk, and layered beside them."""
    chunked, others = found.filter(pl.col("chunk_tokens").is_not_null()), found.filter(pl.col("chunk_tokens").is_null())
    least, most = chunked.row(0, named=True), chunked.row(-1, named=True)
    said = [
        f"in chunks of {row['size']} it reads {_bytes(row)} and takes {quantity(row['ttft_mean_s'], 's')}"
        for row in (least, most)
    ]
    said += [f"{row['system']} reads {_bytes(row)} and takes {quantity(row['ttft_mean_s'], 's')}" for row in others.to_dicts()]
    share = (
        f" The MoE takes {percent(least['moe_frac'])} of the time in chunks of {least['size']}." if "moe_frac" in least else ""
    )
    return f"One prompt alone: {joined(said)}.{share}"


def _bytes(row: dict[str, float]) -> str:
    return f"{row['expert_bytes_per_request'] / 1e9:,.0f} GB of experts"
