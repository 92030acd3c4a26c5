"""A tape that records no prompt, as many engines' traces do."""

import polars as pl
from tiny_tape import tiny_tables, write_tiny

import tokentape as tt
from tokentape.warehouse.tape import Store


def test_a_tape_of_decodes_alone_is_replayed(store: Store) -> None:
    tables = {name: pl.from_arrow(table) for name, table in tiny_tables().items()}
    decodes = tables["passes"].filter(kind="decode")["pass_id"].implode()
    alone = {name: tables[name].filter(pl.col("pass_id").is_in(decodes)).to_arrow() for name in ("tokens", "passes", "routing")}
    write_tiny(store, "alone", alone, flags={"missing_prefill": {"requests": 3, "tokens": 18}})
    place = tt.open(store.root)
    for machine in ("h100x8", "workstation-rtx4090-pcie4"):
        tt.run(place.tape("alone"), "lru", capacity="50%", scope="global", machine=machine)
    assert place.load().sql("from request_metrics where ttft_s is null and tbt_mean_s > 0").height == 6
