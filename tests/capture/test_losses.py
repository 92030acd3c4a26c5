"""Losses of experts: reservoirs against their definition, GPTQ against a dense inverse, every family, and a tape that resumes."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch
from refusing import refuses
from tiny_families import MOE_CONFIGS, build, prompt

from tokentape.capture.live.copies import experts_of
from tokentape.capture.live.loop import Request, Sampling, decode
from tokentape.capture.losses import reservoir, run
from tokentape.capture.losses.experts import expert_of, matrices_of, replicas
from tokentape.capture.losses.gptq import DAMPING, Gptq
from tokentape.capture.losses.reservoir import LEAST, Reservoirs
from tokentape.capture.plan import CaptureSettings
from tokentape.capture.run import capture
from tokentape.policies.replicas import WIDTHS, levels
from tokentape.warehouse.losses import loss_table
from tokentape.warehouse.tape import BadTape, Store

# ------------------------------------------------------------------------------------------------------------------- GPTQ


def dense_gptq(w, x, of, dead=()):
    """Column by column with the inverse of what is left of H, computed anew each time: GPTQ as its derivation states it."""
    h = 2 * x.T @ x
    for j in dead:
        h[j, j] = 1.0
    h += DAMPING * np.diag(h).mean() * np.eye(len(h))
    rest, rounded = w.astype(np.float64).copy(), np.zeros_like(w)
    rest[:, list(dead)] = 0.0
    for j in range(w.shape[1]):
        inverse = np.linalg.inv(h[j:, j:])
        rounded[:, j] = of.nearest(rest[:, j : j + 1].astype(np.float32), j)[:, 0]
        rest[:, j:] -= np.outer((rest[:, j] - rounded[:, j]) / inverse[0, 0], inverse[0])
    return rounded


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("seed", range(3))
def test_gptq_is_the_dense_version(bits, seed, monkeypatch):
    monkeypatch.setattr("tokentape.capture.losses.gptq.BLOCK", 12)  # errors cross the borders of blocks
    rng = np.random.default_rng(seed)
    w = rng.standard_normal((16, 32), dtype=np.float32)
    x = rng.standard_normal((80, 32), dtype=np.float32) @ rng.standard_normal((32, 32), dtype=np.float32)
    x[:, 5] = 0.0  # an input that is never active
    of = levels(w, bits, 8)
    found = Gptq(torch.from_numpy(x))(torch.from_numpy(w), levels(torch.from_numpy(w), bits, 8)).numpy()
    expected = dense_gptq(w, x.astype(np.float64), of, dead=(5,))
    # A weight half-way between two levels may fall to either side in f32; everything after it then differs in its row.
    same = np.isclose(found, expected, atol=1e-4).all(axis=1)
    assert same.sum() >= 15
    error = lambda q: np.square(x @ (q - w).T).mean()  # noqa: E731
    assert error(found) == pytest.approx(error(expected), rel=0.02)
    assert error(found) < error(of.nearest(w))


def test_inputs_without_correlation_are_rounded_to_nearest_and_refits_leave_them():
    """H is then a multiple of the identity: no error can be made good elsewhere."""
    x = torch.from_numpy(np.kron(np.ones((2, 1)), np.eye(32)).astype(np.float32))
    w = torch.randn(16, 32, generator=torch.Generator().manual_seed(0))
    for bits in WIDTHS:
        of = levels(w, bits, 8)
        assert torch.allclose(Gptq(x)(w, of), of.nearest(w), atol=1e-5)
    w, x = drawn(0, 5, 16), drawn(1, 60, 16)
    assert torch.equal(Gptq(x).refitted(w, x), w)
    dead = x.clone()
    dead[:, 3] = 0.0
    assert torch.equal(Gptq(dead).refitted(w, x)[:, 3], w[:, 3])
    few = drawn(2, 4, 16)  # rows that leave most directions unseen do not shrink the matrix there
    unseen = torch.linalg.svd(few).Vh[4:].T
    assert torch.allclose(Gptq(few).refitted(w, x[:4]) @ unseen, w @ unseen, atol=1e-4)
    w, x = drawn(0, 5, 16), drawn(1, 200, 16)
    seen = x @ (torch.eye(16) + 0.3 * drawn(2, 16, 16) / 4)
    before, after = ((seen @ made.T - x @ w.T).square().mean() for made in (w, Gptq(seen).refitted(w, x)))
    assert after < 0.01 * before


def drawn(seed, *shape):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape, dtype=np.float32))


def test_a_refit_is_least_squares_with_damping_as_rows_of_its_own(monkeypatch):
    """Damped towards w: the rows sqrt(damping) I are to yield sqrt(damping) w. Hardly damped it is lstsq on the bare inputs."""
    w, meant = drawn(0, 5, 16), drawn(1, 60, 16)
    seen = meant + 0.5 * drawn(2, 60, 16)
    for damping in (0.01, 1e-7):
        monkeypatch.setattr("tokentape.capture.losses.gptq.DAMPING", damping)
        root = float(damping * seen.square().sum(0).mean()) ** 0.5
        rows = np.vstack([seen.numpy(), root * np.eye(16)])
        target = np.vstack([(meant @ w.T).numpy(), root * w.numpy().T])
        expected = np.linalg.lstsq(rows.astype(np.float64), target.astype(np.float64), rcond=None)[0].T
        np.testing.assert_allclose(Gptq(seen).refitted(w, meant).numpy(), expected, atol=1e-4)
    bare = np.linalg.lstsq(seen.numpy(), (meant @ w.T).numpy(), rcond=None)[0].T
    np.testing.assert_allclose(expected, bare, atol=1e-4)


# ------------------------------------------------------------------------------------------------------------- reservoirs


def watched(model, n_prompts=4, batch_size=2, layers=None, **options):
    """Reservoirs after prompts of unequal length, and (hidden, ids) of all real tokens per layer."""
    experts, seen = experts_of(model), {}
    layers = list(experts) if layers is None else layers
    prompts = [Request(i, tuple(prompt(20 + 3 * i)[0].tolist()), 0) for i in range(n_prompts)]

    def keep(layer):
        def hook(module, args, kwargs):
            ids = kwargs["top_k_index"] if "top_k_index" in kwargs else args[1]
            seen.setdefault(layer, []).append((args[0].clone(), ids.clone()))

        return hook

    handles = [experts[layer].register_forward_pre_hook(keep(layer), with_kwargs=True) for layer in layers]
    with Reservoirs(model, layers, **{"seed": 7} | options) as reservoirs:
        for start in range(0, n_prompts, batch_size):
            decode(model, prompts[start : start + batch_size], Sampling(), frozenset(), 0, before_pass=reservoirs.before)
    for handle in handles:
        handle.remove()
    return reservoirs, seen


def rows_in(found):
    return {tuple(row) for row in torch.cat([found.calibration, found.held_out]).tolist()}


@pytest.mark.parametrize("name", MOE_CONFIGS)
def test_a_reservoir_holds_what_was_routed_to_the_expert_and_then_others_of_the_layer(tiny, name):
    reservoirs, seen = watched(tiny[name], batch_size=1)
    some_topped_up = False
    for layer, passes in seen.items():
        states = torch.cat([states for states, _ in passes]).float()
        ids = torch.cat([ids for _, ids in passes])
        for expert in range(8):
            found = reservoirs.rows(layer, expert)
            mine = {tuple(row) for row in states[(ids == expert).any(dim=1)].tolist()}
            assert mine <= rows_in(found) <= {tuple(row) for row in states.tolist()}
            n = max(LEAST, int((ids == expert).any(dim=1).sum()))
            assert (len(found.held_out), len(found.calibration)) == (round(0.2 * n), n - round(0.2 * n))
            assert found.topped_up == (int((ids == expert).any(dim=1).sum()) < LEAST)
            some_topped_up |= found.topped_up
    assert some_topped_up


def test_padding_is_no_token(tiny):
    alone, _ = watched(tiny["Qwen3Moe"], batch_size=1)
    padded, _ = watched(tiny["Qwen3Moe"], batch_size=4)
    for expert in range(8):
        one, other = alone.rows(1, expert), padded.rows(1, expert)
        assert (one.calibration.shape, one.topped_up) == (other.calibration.shape, other.topped_up)
        assert torch.allclose(one.calibration, other.calibration, atol=1e-4)


def test_a_full_reservoir_is_a_seeded_uniform_sample(tiny):
    size = 12
    reservoirs, _ = watched(tiny["Qwen3Moe"], n_prompts=8, size=size)
    again, _ = watched(tiny["Qwen3Moe"], n_prompts=8, size=size, layers=[2])
    other, _ = watched(tiny["Qwen3Moe"], n_prompts=8, size=size, seed=8)
    full = [expert for expert in range(8) if reservoirs._of[2, expert].seen > size]
    assert len(full) >= 5
    for expert in full:
        rows = reservoirs._of[2, expert].columns[0]
        assert len(rows) == size
        assert torch.equal(rows, again._of[2, expert].columns[0])
        assert not torch.equal(rows, other._of[2, expert].columns[0])


def test_every_row_is_kept_as_often_as_every_other():
    counts = np.zeros(40)
    for seed in range(1000):
        held = reservoir._Reservoir(10, np.random.default_rng(seed))
        for batch in torch.arange(40.0).reshape(-1, 1).split(7):
            held.add(batch)
        (rows,) = held.columns
        assert len(rows.unique()) == 10
        counts[rows[:, 0].long().numpy()] += 1
    assert np.abs(counts / 1000 - 0.25).max() < 4 * np.sqrt(0.25 * 0.75 / 1000)  # a binomial's four standard deviations


def test_batches_do_not_decide_what_is_kept():
    kept = []
    for size in (1, 9, 100):
        held = reservoir._Reservoir(10, np.random.default_rng(3))
        for batch in torch.arange(100.0).reshape(-1, 1).split(size):
            held.add(batch)
        kept.append(held.columns[0])
    assert torch.equal(kept[0], kept[1])
    assert torch.equal(kept[0], kept[2])


def test_too_little_text_overflows_and_unknown_layouts_are_refused(tiny):
    reservoirs, _ = watched(tiny["Qwen3Moe"], n_prompts=2)
    refuses("calibration text has 43 tokens; an expert needs at least 64", reservoirs.rows, 0, 0)
    reservoirs, _ = watched(tiny["Qwen3Moe"])
    with torch.inference_mode():
        reservoirs._of[1, 3].columns[0][0, 0] = float("inf")
    refuses("layer 1, expert 3: hidden vectors overflow", reservoirs.rows, 1, 3)
    module = build("Qwen3Moe").model.layers[0].mlp.experts
    refuses("unknown quantiser 'awq'; known: gptq, rtn", next, replicas(expert_of(module, 0), None, "awq"))
    module.has_gate = False
    refuses("Qwen3MoeExperts: its layout is not known", matrices_of, module)


# ---------------------------------------------------------------------------------------------------------------- experts


@pytest.mark.parametrize("name", MOE_CONFIGS)
def test_an_expert_by_itself_is_the_familys_own(tiny, name):
    module = experts_of(tiny[name])[max(experts_of(tiny[name]))]
    x = torch.randn(6, 32, generator=torch.Generator().manual_seed(4))
    for index in (0, 7):
        with torch.no_grad():
            theirs = module(x, torch.full((6, 1), index), torch.ones(6, 1))
            assert torch.allclose(expert_of(module, index)(x), theirs, atol=1e-4)


@pytest.mark.parametrize("name", MOE_CONFIGS)
def test_losses_of_every_family(tiny, name):
    """From the definition: the expert with rounded matrices against itself, on calibration and on held-out rows."""
    model = tiny[name]
    reservoirs, _ = watched(model)
    layer = max(experts_of(model))
    found = run.Calibrated(layer, 3, expert_of(experts_of(model)[layer], 3), reservoirs.rows(layer, 3))
    rows = pl.DataFrame(run.losses_of(found, group=8))
    assert rows.select("method", "bits").rows() == [(m, b) for m in ("gptq", "rtn") for b in WIDTHS]
    expert, x, held_out = found.expert, found.rows.calibration, found.rows.held_out
    for bits in WIDTHS:
        rounded = {part: levels(getattr(expert, part), bits, 8).nearest(getattr(expert, part)) for part in ("up", "down")}
        wrong = replace(expert, **rounded)
        row = rows.row(by_predicate=(pl.col("method") == "rtn") & (pl.col("bits") == bits), named=True)
        assert row["mse"] == pytest.approx(np.square((wrong(x) - expert(x)).numpy()).mean(), rel=1e-4)
        assert row["heldout_mse"] == pytest.approx(np.square((wrong(held_out) - expert(held_out)).numpy()).mean(), rel=1e-4)
    by_bits = rows.filter(pl.col("method") == "gptq")["mse"].to_numpy()
    assert by_bits[3] < by_bits[2] < by_bits[1]


def test_down_is_refitted_to_what_the_rounded_up_yields(tiny):
    expert = expert_of(experts_of(tiny["GptOss"])[0], 1)
    x = torch.randn(100, 32, generator=torch.Generator().manual_seed(5))
    for bits, replica in replicas(expert, x, "gptq", group=8):
        assert torch.equal(replica.up, Gptq(x)(expert.up, levels(expert.up, bits, 8)))
        before_down = Gptq(replica.inner(x))
        down = before_down.refitted(expert.down, expert.inner(x))
        assert torch.equal(replica.down, before_down(down, levels(down, bits, 8)))
        assert torch.equal(replica.up_bias, expert.up_bias)
        assert torch.equal(replica.down_bias, expert.down_bias)


# ------------------------------------------------------------------------------------------------------------------- tape


@pytest.fixture(scope="module")
def settings(model_folder, tmp_path_factory):
    text = tmp_path_factory.mktemp("text") / "text.jsonl"
    text.write_text("".join(f'{{"text": "{" ".join(f"word{i * j}" for j in range(30))}"}}\n' for i in range(4)))
    return CaptureSettings(model_folder("Mixtral"), str(text), tables=("losses",), max_requests=9, max_prompt_tokens=40)


@pytest.fixture(scope="module")
def captured(settings, tmp_path_factory):
    """The store, the tape of `settings` and its progress."""
    store, told = Store(str(tmp_path_factory.mktemp("captured"))), []
    return store, capture(settings, store, progress=lambda *one: told.append(one)), told


def losses(store, trace_id):
    return store.open(trace_id).read("losses")


def test_the_tape_of_a_capture(captured, settings):
    store, trace_id, told = captured
    tape = store.open(trace_id)
    assert tape.manifest.tables == ("requests", "losses")
    assert tape.manifest.settings["max_new_tokens"] == 0
    assert tape.read("requests")["n_prompt_tokens"].to_list() == [40] * 9  # pieces of four documents
    assert tape.read("requests")["n_output_tokens"].to_list() == [0] * 9
    table = tape.read("losses")
    keys = [(layer, e, b, m) for layer in range(3) for e in range(8) for m in ("gptq", "rtn") for b in WIDTHS]
    assert table.select("layer", "expert", "bits", "method").rows() == keys
    assert table["n_tokens"].min() >= LEAST
    assert (table["mse"] > 0).all()
    assert told[-1] == (24, 24, "experts")
    assert {what for *_, what in told} == {"prompts through layers 0 to 2", "experts"}
    array = loss_table(tape, "rtn")
    assert array.shape == (3, 8, 4)
    chosen = table.filter((pl.col("layer") == 2) & (pl.col("expert") == 5) & (pl.col("method") == "rtn") & (pl.col("bits") == 3))
    assert array[2, 5, 2] == chosen["mse"][0]
    assert not losses(store, capture(replace(settings, seed=1), store))["mse"].equals(table["mse"])


def test_a_stopped_capture_goes_on_with_the_next_layer(captured, settings, tmp_path, monkeypatch):
    whole = losses(*captured[:2])
    monkeypatch.setattr(run, "RESERVOIR_BYTES", 1)  # a pass per layer
    elsewhere = Store(str(tmp_path / "again"))

    def stop(done, total, what):
        if (what, done) == ("experts", 12):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        capture(settings, elsewhere, progress=stop)
    refuses("was stopped before it finished; continue with --resume", capture, settings, elsewhere)
    told = []
    trace_id = capture(settings, elsewhere, resume=True, progress=lambda *one: told.append(one))
    assert {total for _, total, what in told if what == "experts"} == {16}  # two layers of three were left
    assert losses(elsewhere, trace_id).equals(whole)
    assert elsewhere.open(trace_id).manifest.rows == {"requests": 9, "losses": 192}


def test_dense_models_and_tables_of_other_quantisers_have_no_losses(settings, store, model_folder, captured):
    with pytest.raises(ValueError, match="is a dense model without experts: there are no losses to record"):
        capture(replace(settings, model=model_folder("Llama")), store)
    assert not store.trace_ids()
    assert not store.unfinished_ids()
    store, trace_id, _ = captured
    refuses("holds no losses of awq; it has gptq, rtn", loss_table, store.open(trace_id), "awq", error=BadTape)
