"""Attention tapes through KV policies: kept mass by hand, conservation, truncated and broken rows, long contexts."""

import dataclasses
import tracemalloc

import numpy as np
import polars as pl
import pytest
from attention_tapes import batch, pieces_of, softmax_rows, tape_of
from hypothesis import given, settings
from hypothesis import strategies as st
from refusing import refuses

from tokentape.policies.kv import KV_POLICIES
from tokentape.policies.kv.importance import AEP, AERP, H2O
from tokentape.policies.kv.quest import Quest
from tokentape.policies.kv.random_eviction import RandomEviction
from tokentape.policies.kv.slots import Slots, salts_of
from tokentape.policies.kv.snapkv import SnapKV
from tokentape.policies.kv.streaming import Streaming
from tokentape.policies.kv.tova import TOVA, Oracle
from tokentape.replay.kv.replay import replay_kv, widths_of
from tokentape.replay.kv.tape import AttentionTape

FULL = KV_POLICIES["full"]()
SHIPPED = [
    Streaming(8, sink=2), H2O(8), TOVA(8), SnapKV(8, window=3), RandomEviction(8, sink=1), AEP(8, sink=1), AERP(8, sink=1),
    AEP(8, sink=1, is_per_head=False), Oracle(8), FULL,
]  # fmt: skip
NAMES = [f"{type(p).__name__}{'' if p.is_per_head else '-shared'}" for p in SHIPPED]


def made(seed=0, n_layers=2, n_heads=3, c=10, n=40):
    return softmax_rows(np.random.default_rng(seed), n_layers, n_heads, c, n)


def by_hand(policy, prompt, rows, renorm):
    """Kept mass of every (step, layer, head), from Slots and a row at a time; heads that share a set are summed."""
    n_layers, n_heads, c = prompt.shape
    n_sets = n_heads if policy.is_per_head else 1
    kept = np.zeros((rows.shape[2], n_layers, n_heads))
    for layer in range(n_layers):
        slots = Slots(policy, salts_of(layer, n_sets))
        slots.start(prompt[layer].astype(float).reshape(n_sets, -1, c).sum(axis=1))
        for step in range(rows.shape[2]):
            now = np.full(n_sets, c + step)
            slots.place(now)
            at = np.repeat(slots.positions, n_heads // n_sets, axis=0)
            mass = np.where(at >= 0, np.take_along_axis(rows[layer, :, step], np.maximum(at, 0), axis=1), 0).astype(float)
            kept[step, layer] = mass.sum(axis=1)
            if renorm:
                mass *= (rows[layer, :, step].astype(float).sum(axis=1) / mass.sum(axis=1))[:, None]
            slots.settle(mass.reshape(n_sets, -1, mass.shape[1]).sum(axis=1), now)
    return kept


@pytest.mark.parametrize("renorm", [True, False])
@pytest.mark.parametrize("policy", SHIPPED[:2] + SHIPPED[4:8], ids=NAMES[:2] + NAMES[4:8])
def test_kept_mass_equals_a_replay_by_hand(policy, renorm):
    prompt, rows = made()
    kept = by_hand(policy, prompt, rows, renorm)
    result = replay_kv(tape_of([(prompt, rows)], rows_per_piece=7), policy, renorm)
    assert result.replay["kept_mass_frac"] == pytest.approx(kept.mean(), rel=1e-6)
    found = {(r["layer"], r["kv_head"]): r["kept_mass_frac"] for r in result.heads}
    for (layer, head), value in found.items():
        assert value == pytest.approx(kept[:, layer, head].mean(), rel=1e-6)


@pytest.mark.parametrize("policy", SHIPPED, ids=NAMES)
def test_what_is_kept_evicted_and_stored_adds_up(policy):
    requests = [made(1), made(2, c=4, n=25)]
    result = replay_kv(tape_of(requests, rows_per_piece=11), policy)
    row = result.replay
    assert 0 < row["kept_mass_frac"] == row["kept_mass_high_frac"] <= 1 + 1e-6
    assert (row["n_requests"], row["n_steps"]) == (2, 30 + 21)
    budget = policy.limits[0]
    evicted = 2 * 3 * sum(n - max(c, budget) for c, n in ((10, 40), (4, 25))) if policy is not FULL else 0
    assert row["n_evicted"] == evicted
    assert sum(r["n_evicted"] for r in result.heads) == evicted
    assert sum(r["n_steps"] for r in result.timeline) == 2 * row["n_steps"]
    assert all(r["retained_tokens"] <= budget for r in result.timeline)
    assert row["x_bytes"] + row["kv_bytes"] <= row["full_bytes"]
    assert row["kv_bytes"] == pytest.approx(sum(r["kv_bytes"] * r["n_steps"] for r in result.timeline) / row["n_steps"])
    if policy is FULL:
        assert row["kept_mass_frac"] == pytest.approx(1)
        assert row["kv_bytes"] == row["full_bytes"]
        assert row["popular_frac"] == row["popular_stays_frac"] == 1
    assert row["is_bound"] == isinstance(policy, Oracle)
    assert (row["x_bytes"] > 0) == isinstance(policy, AERP)


def test_unlimited_budgets_keep_everything_and_the_future_more_than_the_past():
    for policy in (AEP(None), H2O(None), Streaming(None), AEP(40, sink=1), TOVA(64)):
        row = replay_kv(tape_of([made()]), policy).replay
        assert row["kept_mass_frac"] == pytest.approx(1)
        assert row["n_evicted"] == 0
    # On attention whose tastes last, ranked by what is still to come; scores beat random draws.
    tape = tape_of([made(seed, c=20, n=120) for seed in range(3)])
    kept = {name: replay_kv(tape, policy).replay["kept_mass_frac"] for name, policy in zip(NAMES, SHIPPED, strict=True)}
    assert kept["Oracle"] == max(v for name, v in kept.items() if name != "Full")
    assert kept["AEP"] > kept["RandomEviction"]
    assert kept["H2O"] > kept["Streaming"]


def test_pieces_and_batches_do_not_matter():
    requests = [made(3), made(4)]
    whole = replay_kv(tape_of(requests), AERP(8, sink=1))
    for size in (1, 5, 6, 100):
        cut = replay_kv(tape_of(requests, rows_per_piece=size), AERP(8, sink=1))
        assert (cut.replay, cut.heads, cut.timeline) == (whole.replay, whole.heads, whole.timeline)
    requests = [made(5), made(6)]
    apart = tape_of(requests)
    for policy in (AEP(8, sink=1), Oracle(8), AERP(8, sink=2)):
        assert replay_kv(interleaved(requests, apart), policy).heads == replay_kv(apart, policy).heads


def interleaved(requests, geometry_of):
    """One tape in which requests of equal length decode as a batch: their rows alternate pass by pass."""
    every = [
        list(pieces_of(prompt, rows, i, rows_per_piece=prompt.shape[0] * prompt.shape[1]))
        for i, (prompt, rows) in enumerate(requests)
    ]
    return AttentionTape(
        geometry_of.trace_id, "synthetic", geometry_of.geometry, geometry_of.notes, geometry_of.requests,
        lambda: [pl.concat(b for step in zip(*every, strict=True) for b in step)],
    )  # fmt: skip


@pytest.mark.parametrize("policy", [Oracle(8), TOVA(8), AERP(8, sink=1)], ids=["oracle", "shared", "aerp"])
def test_a_layer_is_replayed_as_if_it_were_alone(policy):
    prompt, rows = made(19, n_layers=2, n_heads=4)
    both = replay_kv(tape_of([(prompt, rows)]), policy).heads
    alone = [replay_kv(tape_of([(prompt[x : x + 1], rows[x : x + 1])]), policy).heads for x in range(2)]
    assert [row | {"layer": 0} for row in both] == [row for rows in alone for row in rows]


def test_sharing_a_set_keeps_one_set_per_layer():
    result = replay_kv(tape_of([made(7)]), AEP(8, sink=1, is_per_head=False))
    assert all(r["distinct_tokens"] == r["retained_tokens"] for r in result.timeline)
    assert result.replay["popular_frac"] == 1
    apart = replay_kv(tape_of([made(7)]), AEP(8, sink=1))
    assert all(r["distinct_tokens"] >= r["retained_tokens"] for r in apart.timeline)
    assert 0 < apart.replay["popular_frac"] < 1


def test_recomputation_stores_popular_tokens_once_but_not_under_gqa():
    """Two heads of one layer, no eviction: every token is popular and stored as 2C bytes."""
    prompt, rows = made(8, n_layers=1, n_heads=2, c=6, n=8)
    tape = tape_of([(prompt, rows)])
    result = replay_kv(tape, AERP(64, sink=1))
    hidden = tape.geometry.hidden
    assert result.replay["x_bytes"] == 7.5 * 2 * hidden
    assert result.replay["kv_bytes"] == 0
    tape = tape_of([made(9)])
    wide = tape.geometry.model_copy(update={"hidden": 128, "n_heads": 6})  # x 256 B; keys and values of three KV heads 192 B
    tape = tape_of([made(9)], wide)
    with pytest.warns(UserWarning, match="recompute is off"):
        physical = replay_kv(tape, AERP(8, sink=1, accounting="physical"))
    assert physical.replay["x_bytes"] == 0
    assert replay_kv(tape, AERP(8, sink=1)).replay["x_bytes"] > 0


def test_sliding_layers_drop_what_they_no_longer_see():
    prompt, rows = made(10, n_layers=2, c=12, n=30)
    geometry = tape_of([(prompt, rows)]).geometry.model_copy(update={"sliding_windows": (5, 0)})
    for step in range(rows.shape[2]):  # a sliding layer's rows: only the last five keys have mass
        rows[0, :, step, : 12 + step - 4] = 0
        rows[0, :, step] /= rows[0, :, step].sum(axis=1, keepdims=True)
    result = replay_kv(tape_of([(prompt, rows)], geometry), FULL)
    retained = {layer: [r["retained_tokens"] for r in result.timeline if r["layer"] == layer] for layer in (0, 1)}
    assert max(retained[0]) == 4  # before the next token comes, which sees itself and four others
    assert max(retained[1]) > 20
    assert result.replay["kept_mass_frac"] == pytest.approx(1)


def test_quest_stores_what_a_window_shows_and_its_pages():
    tape = tape_of([made(10, n_layers=2, c=12, n=30)], page_tokens=16)
    windowed = tape.geometry.model_copy(update={"sliding_windows": (5, 0)})
    vectors = {name: pl.lit([1.0], dtype=pl.List(pl.Float32)) for name in ("query", "key_min", "key_max")}
    paged = dataclasses.replace(tape, geometry=windowed, pieces=lambda: [of.with_columns(**vectors) for of in tape.pieces()])
    found, whole = (replay_kv(paged, policy).replay["kv_bytes"] for policy in (Quest(16), FULL))
    n_pages = np.mean([2 * (t // 16) + 2 - (t - 3) // 16 for t in range(12, 30)])  # of four tokens, and of all
    assert found - whole == pytest.approx(n_pages * 3 * widths_of(tape).head_bytes)


@pytest.mark.parametrize("policy", [AEP(8, sink=1), Oracle(8), AERP(8, sink=2)])
def test_layers_without_keys_and_values_are_left_out_of_every_count(policy):
    """Two of five layers attend, the last in a window: as a model of these two."""
    prompt, rows = made(21, n_layers=2)
    alone = tape_of([(prompt, rows)])
    alone = tape_of([(prompt, rows)], alone.geometry.model_copy(update={"sliding_windows": (0, 9)}))
    update = {"n_layers": 5, "state_layers": (0, 2), "without_mixing": (3,), "sliding_windows": (40, 0, 40, 0, 9)}

    def placed(piece):
        return piece.with_columns(layer=piece["layer"].replace([0, 1], [1, 4]))

    pieces = alone.pieces
    among = dataclasses.replace(
        alone, geometry=alone.geometry.model_copy(update=update), pieces=lambda: [placed(piece) for piece in pieces()]
    )
    found, wanted = replay_kv(among, policy), replay_kv(alone, policy)
    assert found.replay == wanted.replay
    for of, by in ((found.heads, wanted.heads), (found.timeline, wanted.timeline)):
        assert of == [row | {"layer": (1, 4)[row["layer"]]} for row in by]


# ------------------------------------------------------------------------------------------------------- what is not exact


def test_truncated_rows_are_refused_in_exact_mode():
    tape = tape_of([made(11)], top=5)
    refuses(r"top:5.*--approximate", replay_kv, tape, AEP(8, sink=1))
    rough = replay_kv(tape, AEP(8, sink=1), exact=False).replay
    exact = replay_kv(tape_of([made(11)]), AEP(8, sink=1)).replay
    assert not rough["is_exact"]
    assert exact["is_exact"]
    assert rough["kept_mass_frac"] < rough["kept_mass_high_frac"]
    untouched = replay_kv(tape, FULL, exact=False).replay
    assert untouched["kept_mass_high_frac"] == pytest.approx(1)
    assert untouched["kept_mass_frac"] < 1


def test_rows_that_list_everything_and_sinks_count_as_full_rows():
    full = replay_kv(tape_of([made(12)]), AEP(8, sink=1))
    listed = replay_kv(tape_of([made(12)], top=40), AEP(8, sink=1), exact=False)
    assert listed.heads == full.heads
    prompt, rows = made(15)
    rows *= 0.7
    row = replay_kv(tape_of([(prompt, rows)], has_sinks=True), FULL).replay
    assert row["kept_mass_frac"] == pytest.approx(1)  # of what is paid to tokens


def test_what_is_only_known_as_a_sum_is_said_or_refused():
    assert not replay_kv(tape_of([made(13)]), TOVA(8)).replay["is_exact"]
    assert not replay_kv(tape_of([made(13)]), SnapKV(8, window=3)).replay["is_exact"]
    refuses("inside a model", replay_kv, tape_of([made()]), AEP(8, sink=1, score_kind="raw"))
    refuses("blocks", replay_kv, tape_of([made()], keep="block:8"), AEP(8, sink=1))
    prompt, rows = made(16)
    refuses("every prompt token scores the same", replay_kv, tape_of([(np.ones_like(prompt), rows)]), AEP(8, sink=1))


@pytest.mark.parametrize(("at", "factor", "words"), [
    ((0, 1, 3, 2), np.nan, "NaN or negative attention at request 0, position 13, layer 0, KV head 1"),
    ((1, 2, 5, 0), 1e3, "does not sum .* position 15, layer 1, KV head 2"),
    ((1, 0, 0), 0.5, "does not sum .* position 10, layer 1, KV head 0"),
])  # fmt: skip
def test_broken_rows_are_named(at, factor, words):
    prompt, rows = made(14)
    rows[at] *= factor
    refuses(words, replay_kv, tape_of([(prompt, rows)]), AEP(8, sink=1))


@pytest.mark.parametrize("policy", [AEP(8, sink=1), Oracle(8)], ids=["past", "future"])
@pytest.mark.parametrize("wrong", [-1, 14])
def test_a_listed_key_outside_the_text_so_far_is_named(policy, wrong):
    """The query at position 13 attends to 0..13; its row of layer 1, head 2 lists another one."""
    tape = tape_of([made(18)], top=40)
    prompt, rows = tape.pieces()
    at = next(i for i, r in enumerate(rows.iter_rows(named=True)) if (r["position"], r["layer"], r["kv_head"]) == (13, 1, 2))
    listed = rows["key_positions"].to_list()
    assert listed[at] is None  # as short as its text: all positions, without a list
    listed[at] = [*range(13), wrong]
    spoilt = rows.with_columns(key_positions=pl.Series(listed, dtype=pl.List(pl.Int32)))
    bad = AttentionTape("made-up", "synthetic", tape.geometry, tape.notes, tape.requests, lambda: [prompt, spoilt])
    refuses("outside the text so far at request 0, position 13, layer 1, KV head 2", replay_kv, bad, policy, exact=False)


def test_missing_heads_and_unknown_requests_are_refused():
    prompt, rows = made(17)
    tape = tape_of([(prompt, rows)])
    pieces = list(tape.pieces())

    def of(pieces, requests=tape.requests):
        return AttentionTape("made-up", "synthetic", tape.geometry, tape.notes, requests, lambda: pieces)

    refuses("3 heads of each layer", replay_kv, of([pieces[0][1:], *pieces[1:]]), AEP(8, sink=1))
    refuses(r"2 of 3 heads|heads of each layer", replay_kv, of([pieces[0], pieces[1][:-1]]), AEP(8, sink=1))
    refuses("request 0, which `requests` does not list", replay_kv, of(pieces, {1: (10, 40)}), AEP(8, sink=1))
    refuses("no decoded attention", replay_kv, of(pieces[:1]), AEP(8, sink=1))


# -------------------------------------------------------------------------------------------------------------------- size


def test_a_long_context_streams():
    """32 layers x 32,768 tokens, top-16 rows: the square of one layer would be 4 GiB."""
    n_layers, c, n_steps, top = 32, 32_768 - 64, 64, 16
    rng = np.random.default_rng(18)
    prompt = rng.random((n_layers, c), np.float32) * 2

    def pieces():
        for layer in range(n_layers):
            yield batch(0, [c - 1], [layer], [0], "column_sum", [prompt[layer]], [None], [0.0])
        for step in range(n_steps):
            keys = np.sort(rng.choice((c + step) // 32, (n_layers, top), replace=True), axis=1) + np.arange(top)
            masses, at = [np.full(top, 0.9 / top, np.float32)] * n_layers, [c + step] * n_layers
            of_layers = list(range(n_layers)), [0] * n_layers
            yield batch(0, at, *of_layers, "row", masses, list(keys.astype(np.int32)), [0.1] * n_layers)

    tape = tape_of([(prompt[:, None, :8], np.zeros((n_layers, 1, 2, 10), np.float32))])
    tape = AttentionTape("long", "synthetic", tape.geometry, tape.notes | {"keep": "top:16"}, {0: (c, c + n_steps)}, pieces)
    replay_kv(tape, AEP(1024), exact=False)  # loads the kernels
    tracemalloc.start()
    row = replay_kv(tape, AEP(1024), exact=False).replay
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert row["n_steps"] == n_steps
    assert 0 < row["kept_mass_frac"] < row["kept_mass_high_frac"] <= 1
    assert peak < 64 << 20


@given(st.integers(0, 10_000))
@settings(max_examples=25, deadline=None)
def test_kept_mass_lies_in_0_to_1_and_grows_with_the_budget_of_streaming(seed):
    rng = np.random.default_rng(seed)
    n_layers, n_heads, c = (int(x) for x in rng.integers(1, 4, 3))
    prompt, rows = softmax_rows(rng, n_layers, n_heads, c + 1, c + 20)
    tape = tape_of([(prompt, rows)])
    kept = [replay_kv(tape, Streaming(budget, sink=1)).replay["kept_mass_frac"] for budget in (3, 6, 12, 40)]
    assert 0 < kept[0] <= kept[1] <= kept[2] <= kept[3] <= 1 + 1e-9
    assert kept[3] == pytest.approx(1)
