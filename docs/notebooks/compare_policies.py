"""Two cache policies on a tape of yours, side by side: `marimo edit docs/notebooks/compare_policies.py -- --store ./tape`."""

import marimo

app = marimo.App(width="medium")


@app.cell
def _():
    import altair as alt
    import marimo as mo
    import polars as pl

    import tokentape as tt
    from tokentape.policies.residency import CACHES

    return CACHES, alt, mo, pl, tt


@app.cell
def _(CACHES, mo, tt):
    mo.md("# Which of two policies hits more often, and what is left to gain?")
    store = tt.open(mo.cli_args().get("store"))
    tapes = mo.ui.dropdown(store.tapes()["trace_id"].to_list(), value=store.tapes()["trace_id"][0], label="tape")
    policies = mo.ui.multiselect(sorted(CACHES), value=["lru", "lfu"], max_selections=4, label="policies")
    scope = mo.ui.radio(["global", "per-layer"], value="global", label="one cache, or one per layer")
    mo.hstack([tapes, policies, scope], justify="start")
    return policies, scope, store, tapes


@app.cell
def _(pl, policies, scope, store, tapes, tt):
    tape = store.tape(tapes.value)
    capacities = ("30%", "40%", "50%", "75%")
    runs = [
        tt.run(tape, name, capacity=capacity, scope=scope.value)
        for name in (*policies.value, "belady")  # the bound: it evicts what is needed last
        for capacity in capacities
    ]
    found = tt.compare(*runs).select("policy", "capacity_frac", "hit_frac", "decode_step_s").sort("policy", "capacity_frac")
    bound = found.filter(pl.col("policy") == "belady").select("capacity_frac", best="hit_frac")
    gap = found.join(bound, on="capacity_frac").with_columns(missed_of_the_bound=pl.col("best") - pl.col("hit_frac")).drop("best")
    return found, gap, runs


@app.cell
def _(alt, found):
    chart = (
        alt.Chart(found)
        .mark_line(point=True)
        .encode(
            alt.X("capacity_frac:Q").axis(format="%").title("cache (share of all experts)"),
            alt.Y("hit_frac:Q").axis(format="%").scale(zero=False).title("lookups that hit"),
            alt.Color("policy:N"),
            tooltip=["policy", "capacity_frac", "hit_frac", "decode_step_s"],
        )
    )
    chart  # noqa: B018
    return (chart,)


@app.cell
def _(gap):
    gap  # noqa: B018
    return


if __name__ == "__main__":
    app.run()
