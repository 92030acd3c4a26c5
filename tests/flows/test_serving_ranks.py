"""Experts over ranks: the fullest rank against plain Python, what its time is made of, maps that even it out, and refusals."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from refusing import refuses
from tiny_tape import write_tiny

from tokentape.flows.grid import load_trace
from tokentape.flows.serving.setup import Point, engine_of
from tokentape.hw.spec import load
from tokentape.policies.serving import Chunked
from tokentape.replay.exports import eplb
from tokentape.replay.serving.coverage import FixedCoverage
from tokentape.replay.serving.iteration import (
    DECODES,
    EXPERT_BYTES,
    J_OF_BYTES,
    J_OF_OPS,
    PAIRS,
    PROMPT,
    PROMPTS,
    iteration_costs,
)
from tokentape.replay.serving.memory import footprint
from tokentape.replay.serving.ranks import N_SIZES, Ranks, crowding, held_by, of_even_draws, of_tape
from tokentape.replay.trace import DECODE
from tokentape.warehouse import models
from tokentape.warehouse.tape import Store

QWEN = models.load("qwen3-30b-a3b").geometry


def test_the_fullest_rank_is_that_of_plain_python() -> None:
    rng = np.random.default_rng(3)
    counts = rng.integers(0, 4, (5, 8)) * rng.integers(0, 2, (5, 8))
    counts[:, 0] += 1
    slots = [[0, 1, 0], [2, 3, 0], [4, 5, 6], [7, 0, 1]]  # expert 0 has four replicas, 1 two
    copies = {e: sum(row.count(e) for row in slots) for e in range(8)}
    share = np.array([[row.count(e) / copies[e] for row in slots] for e in range(8)])
    expected = []
    for of in counts.tolist():
        tokens = [sum(of[e] / copies[e] for e in row) for row in slots]
        active = [sum(min(1.0, of[e] * row.count(e) / copies[e]) for e in set(row)) for row in slots]
        expected.append((max(active) * 4 / sum(n > 0 for n in of), max(tokens) * 4 / sum(of)))
    assert crowding(counts, share) == pytest.approx(np.mean(expected, axis=0))


def test_placements_are_vllms_and_what_is_none_is_refused(tmp_path: Path) -> None:
    linear, robin = (held_by(name, QWEN, 4)[7].argmax(axis=1).tolist() for name in ("linear", "round_robin"))
    assert (linear, robin) == ([e // 32 for e in range(128)], [e % 4 for e in range(128)])
    path = tmp_path / "map.json"
    for name, n_ranks, says in (("nope", 4, "unknown expert placement"), ("linear", 7, "do not share out among 7 ranks")):
        refuses(says, held_by, name, QWEN, n_ranks)
    for text in ("{}", "[1]", "nope"):
        path.write_text(text)
        refuses("no map of experts", held_by, str(path), QWEN, 2)
    path.write_text(json.dumps({"physical_to_logical_map": [[0, 1]] * 48}))
    refuses("is it of this model", held_by, str(path), QWEN, 2)


@pytest.mark.parametrize("profile", ["physical", "layered_prefill"])
def test_a_layer_ends_with_its_fullest_rank_and_reads_what_all_do(profile: str) -> None:
    """Experts of a rank that has c times its even share take c times as long; bytes and energy are those of all."""
    machine = replace(load("h100x2"), expert_parallel=True)

    def cost(ranks: Ranks | None, prompt: float) -> np.ndarray:
        made = iteration_costs(QWEN, machine, FixedCoverage(0.25), profile, ranks=ranks)
        carried = {DECODES: 16.0, PROMPT: prompt, PROMPTS: float(prompt > 0), PAIRS: prompt * prompt / 2}
        layers = made.layers_before[-1] * (prompt > 0)
        return made.cost(carried, layers, np.array([0.25]), np.array([0.25]))

    even, none = Ranks(128, np.ones((2, 2, N_SIZES))), cost(None, 0.0)
    assert cost(even, 0.0).tolist() == none.tolist()
    assert cost(even, 512.0) == pytest.approx(cost(None, 512.0), rel=1e-12)
    crowded = [Ranks(128, np.stack([np.full((2, N_SIZES), times), np.ones((2, N_SIZES))])) for times in (1.5, 2.0)]
    half, twice = (cost(ranks, 0.0) for ranks in crowded)
    if profile == "layered_prefill":
        assert half[0] == pytest.approx(1.5 * none[0])
    assert half[0] > 1.2 * none[0]  # launches do not wait
    assert twice[0] - half[0] == pytest.approx(half[0] - none[0])
    others = [*range(1, 5), EXPERT_BYTES, J_OF_BYTES, J_OF_OPS]
    assert half[others] == pytest.approx(none[others])
    assert cost(crowded[1], 512.0) == pytest.approx(cost(None, 512.0), rel=1e-12)  # curves of prompts have none


def test_even_draws_leave_less_crowding_and_replicas_take_memory() -> None:
    of = {n: of_even_draws(QWEN, "linear", n).crowding[0] for n in (1, 2, 8)}
    assert of[1].tolist() == np.ones((2, N_SIZES)).tolist()
    assert (of[2] < of[8])[:, :6].all()
    assert (np.diff(of[8][1]) < 0.02).all()
    assert of[8][0, -1] == pytest.approx(1.0)  # all experts of all ranks
    assert of[8][1, 0] == pytest.approx(_one_token(), rel=0.05)
    sizes = [footprint("q", QWEN, load("h100x2"), "bf16", Chunked(512).rule(48), 64, n_replicas=n).weights_bytes for n in (0, 16)]
    assert sizes[1] - sizes[0] == 48 * 16 * QWEN.expert_params * 2


def _one_token() -> float:
    """Mean of the largest of eight ranks' shares of eight experts of one token."""
    rng, n = np.random.default_rng(1), 4000
    return float(np.mean([np.bincount(rng.permutation(128)[:8] // 16, minlength=8).max() for _ in range(n)]))


def test_a_map_by_load_evens_out_what_contiguous_blocks_crowd() -> None:
    rng = np.random.default_rng(0)
    popularity = rng.permutation(np.arange(1, 129) ** -0.5)
    counts = rng.multinomial(4096, popularity / popularity.sum(), 64)
    mapped = eplb.physical_map(counts.sum(axis=0)[None], 8, 0)[0]
    by_load = np.zeros((128, 8))
    by_load[mapped, np.arange(128) // 16] = 1.0
    even, linear = (crowding(counts, share)[1] - 1.0 for share in (by_load, held_by("linear", QWEN, 8)[0]))
    assert even < 0.4 * linear


def test_a_tape_tells_its_own_crowding(tmp_path: Path) -> None:
    """Decodes that all want experts of one rank crowd it by as many ranks as there are."""
    store = Store(str(tmp_path))
    write_tiny(store)
    trace = load_trace(store, "tiny")
    decodes = np.repeat(trace.pass_kind[trace.row_pass] == DECODE, np.diff(trace.offsets))
    of = of_tape(replace(trace, ids=np.where(decodes, trace.ids % 2, trace.ids)), "linear", 4).crowding
    assert of[0] == pytest.approx(4.0)
    assert (of[1][1] < 4.0).all()
    assert (of[1] >= 1.0).all()


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"hardware": "h100"}, "h100 has one device"),
        ({"model": "qwen3-8b"}, "has no experts"),
        ({"coverage": "full"}, "leaves routing out"),
        ({"expert_placement": "round"}, "unknown expert placement 'round'; did you mean 'round_robin'"),
    ],
)
def test_what_a_placement_cannot_change_refuses_it(tmp_path: Path, changed: dict[str, str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        engine_of(
            Store(str(tmp_path)), Point(**{"scheduler": "layered", "expert_placement": "linear", "rate_per_s": 1.0} | changed)
        )
