"""Section 5.2 of context-aware MoE on CXL GPU-NDP, computed anew in a minute or two.

`marimo edit docs/notebooks/a_papers_figure.py -- --store ./tape`
"""

import marimo

app = marimo.App(width="medium")


@app.cell
def _():
    import altair as alt
    import marimo as mo
    import polars as pl

    import tokentape as tt

    return alt, mo, pl, tt


@app.cell
def _(mo, tt):
    mo.md("# How much faster are experts near their memory, with fewer bits, than MoNDE and HOBBIT?")
    store = tt.Store(mo.cli_args().get("store"))
    tt.study("cxl_ndp", store, in_model=False)  # what is there already is not computed again
    store.load()
    return (store,)


@app.cell
def _(pl, store):
    claims = store.sql(
        "select setting, role, paper, replay, rel_err from paper_vs_replay where study = 'cxl_ndp' and location = 'Sec 5.2' "
        "and metric in ('decode_throughput_gain', 'e2e_speedup') and paper is not null and replay is not null "
        "order by setting, role"
    )
    both = claims.unpivot(["paper", "replay"], index=["setting", "role"], variable_name="who", value_name="times")
    mean = claims.filter(pl.col("role") == "predict")["rel_err"].abs().mean()
    return both, claims, mean


@app.cell
def _(alt, both):
    chart = (
        alt.Chart(both)
        .mark_point(filled=True, size=70)
        .encode(
            alt.X("times:Q").title("times as fast"),
            alt.Y("setting:N").title(None).axis(labelLimit=400),
            alt.Color("who:N").title("number of"),
            alt.Shape("role:N").title("what it is to us"),
            tooltip=["setting", "role", "who", "times"],
        )
    )
    chart  # noqa: B018
    return (chart,)


@app.cell
def _(mean, mo):
    mo.md(f"Numbers that nothing was fitted to are {mean:.0%} off in the mean. Calibrated ones prove nothing by being near.")
    return


if __name__ == "__main__":
    app.run()
