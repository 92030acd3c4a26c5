"""The figure of a study's orderings: ratios that a live model should keep, as times inside their margin."""

import polars as pl

from tokentape.dashboards.engine import Ask, Drawn, some
from tokentape.dashboards.units import joined, significant

_ORDERINGS = """
select model_id as model, dataset, assertion, split_part(margin, ' ', 1) as sign, split_part(margin, ' ', 2)::double as margin,
    mean, low, high, n_seeds as seeds, holds
from orderings where study = $study order by holds, model, dataset, assertion
"""


def drawn(ask: Ask) -> Drawn:
    """The figure that figures/orderings.toml describes: ratios that a live model is expected to keep, of the page's study, missed
    ones first, with how many times they are inside their margin.

    room: of the mean and of the least and the most of the seeds; above 1 they keep the margin.
    """
    ask.keep(_ORDERINGS)
    found: pl.DataFrame = some(ask.connection.sql(_ORDERINGS, params={"study": ask.params["study"]}).pl())
    is_below = pl.col("sign") == "<="
    room = {
        name: pl.when(is_below).then(pl.col("margin") / pl.col(of)).otherwise(pl.col(of) / pl.col("margin"))
        for name, of in {"room": "mean", "room_low": "low", "room_high": "high"}.items()
    }
    told = found.with_columns(order=pl.int_range(pl.len()), **room)
    is_alone = told.select("model", "dataset").unique().height == 1
    said = [
        {
            "assertion": row["assertion"] + ("" if is_alone else f"|{row['model']}, {row['dataset']}"),
            "said_ratio": f"{significant(row['mean'])} ({significant(row['low'])} to {significant(row['high'])})",
            "said_margin": f"{'at most' if row['sign'] == '<=' else 'at least'} {row['margin']:g}",
            "said_holds": "holds" if row["holds"] else "missed",
        }
        for row in told.to_dicts()
    ]
    where = f" inside {found['model'][0]} on {joined(found['dataset'].unique().sort().to_list())}"
    return Drawn({"orderings": told.with_columns(pl.DataFrame(said))}, facts={"inside": where})
