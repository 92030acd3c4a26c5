"""A tape that records no prompt, as many engines' traces do."""

import polars as pl
from tiny_tape import tiny_tables, write_tiny

import tokentape as tt
from tokentape.dashboards.site import compare
from tokentape.warehouse.sql import connect
from tokentape.warehouse.tape import Store


def test_a_tape_of_decodes_alone_is_replayed_and_what_its_time_and_energy_go_to_is_shown(store: Store) -> None:
    tables = {name: pl.from_arrow(table) for name, table in tiny_tables().items()}
    decodes = tables["passes"].filter(kind="decode")["pass_id"].implode()
    alone = {name: tables[name].filter(pl.col("pass_id").is_in(decodes)).to_arrow() for name in ("tokens", "passes", "routing")}
    write_tiny(store, "alone", alone, flags={"missing_prefill": {"requests": 3, "tokens": 18}})
    place = tt.open(store.root)
    for machine in ("h100x8", "workstation-rtx4090-pcie4"):
        tt.run(place.tape("alone"), "lru", capacity="50%", scope="global", machine=machine)
    assert place.load().sql("from request_metrics where ttft_s is null and tbt_mean_s > 0").height == 6
    with connect(place.database) as connection:
        asked = compare.asked(connection)
        assert asked("parts").filter(of="time")["part"].to_list() == [["decoding"]] * 2
        spent = asked("spent").filter(of="energy").group_by("part").len()
    both = dict.fromkeys(("weights, keys and values", "operations", "power drawn all the time"), 2)
    assert dict(spent.rows()) == {**both, "sums over devices": 1, "experts fetched": 2}  # over the link and from the host
