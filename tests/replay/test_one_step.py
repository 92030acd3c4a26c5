"""One step, one answer: every engine gives a decode step and a prefill the seconds and joules of `estimate`, on every machine."""

from collections import Counter
from dataclasses import replace
from functools import cache

import numpy as np
import polars as pl
import pytest
from tapes import one_by_one, tables_of

from tokentape.hw import profile as profiles
from tokentape.hw.elmoe3d_constants import ELMoE3DConstants, ModelLaw, Speculation
from tokentape.hw.profile import ENDS, PHYSICAL
from tokentape.hw.spec import load, shipped, with_values
from tokentape.policies.residency import CACHES
from tokentape.policies.serving import Chunked
from tokentape.replay.cxl_ndp import decode as ndp
from tokentape.replay.cxl_ndp.prefill import prefill as ndp_prefill
from tokentape.replay.cxl_ndp.routing import CXLNDPRouting
from tokentape.replay.cxl_ndp.system import FETCHED, IN_PLACE, NEAR, Setup, ours, system_of
from tokentape.replay.elmoe3d import points as elmoe3d
from tokentape.replay.elmoe3d.points import KV_FORMAT, STATIC_FORMAT
from tokentape.replay.elmoe3d.timing import PARTS, evaluate
from tokentape.replay.estimate import estimate
from tokentape.replay.experts import replay
from tokentape.replay.kelle.step import decode_steps
from tokentape.replay.kelle.step import prefill as kelle_prefill
from tokentape.replay.kelle.systems import BASELINE, FITS, WHOLE, Work, systems
from tokentape.replay.passes import fits_of
from tokentape.replay.semantics import Semantics
from tokentape.replay.serving.coverage import FixedCoverage
from tokentape.replay.serving.iteration import iteration_costs
from tokentape.replay.serving.run import serve
from tokentape.replay.serving.workload import Requests
from tokentape.replay.tokens import Tokens
from tokentape.replay.trace import trace_from_tables
from tokentape.replay.transformer import steps_of
from tokentape.warehouse.models import load as load_model

MODELS = ("qwen3-30b-a3b", "mixtral-8x7b", "gpt-oss-20b", "deepseek-v2-lite", "nemotron-3-nano-30b-a3b")
MACHINES = {name: load(name) for name in shipped()}
KELLE = systems()
MIXED = "qwen3-30b-a3b, with windows in layers whose keys and values are wider"


@cache
def geometry_of(model):
    wider = {"sliding_windows": (128, 0) * 24, "of_windows": (("n_kv_heads", 16), ("head_dim", 64))}
    return load_model(model.split(",")[0]).geometry.model_copy(update=wider if model == MIXED else {})


def both(prompt):
    """A prompt by itself, and the decode after it."""
    return Tokens(decodes=0, context=1, prompt=prompt), Tokens(decodes=1, context=prompt + 1)


def nominal(cost):
    return float(cost.seconds.value[0]), float(cost.joules.value[0])


@cache
def routed_alike(model, prompt=24):
    """A prompt and one token after it, routed alike in every layer; distinct experts of the prompt."""
    geometry, rng = geometry_of(model), np.random.default_rng(0)
    chosen = [rng.permutation(geometry.n_experts)[: geometry.top_k].tolist() for _ in range(prompt)]
    chosen.append(chosen[0])  # held by then
    gates = [1.0 / geometry.top_k] * geometry.top_k
    routing, passes = tables_of(
        one_by_one(1, prompt, 1), lambda _, position, layer: {"expert_ids": chosen[position], "gate_weights": gates}, geometry
    )
    distinct = len({expert for experts in chosen[:prompt] for expert in experts})
    return trace_from_tables("one", geometry, "synthetic", routing, passes), float(distinct)


def of_a_trace(expert_format):
    def pairs(model, machine):
        """All experts held."""
        geometry = geometry_of(model)
        trace, distinct = routed_alike(model)
        ran = replay(trace, CACHES["belady"](), machine, Semantics("global"), 10**13, expert_format)
        fits = fits_of(machine, expert_format)
        for index, (of, active) in enumerate(zip(both(24), (distinct, geometry.top_k), strict=True)):
            if index == 1 or not machine.roles.expert_cache:  # else the prompt's experts are fetched
                found = ran.timeline["step_s"][index], ran.timeline["energy_j"][index]
                yield found, nominal(estimate(geometry, machine, of, active, fits, expert_format).cost)

    return pairs


def of_serving(is_timed):
    def pairs(model, machine):
        """A prompt longer than a window, and the token after it."""
        geometry, fits = geometry_of(model), fits_of(machine, "bf16") if is_timed else {}
        cost = iteration_costs(geometry, machine, FixedCoverage(0.5), fits=fits)
        run = serve(Requests(np.zeros(1), np.array([300]), np.array([2])), Chunked(8192), cost, record=True)
        wanted = [nominal(estimate(geometry, machine, of, 0.5 * geometry.n_experts, fits).cost) for of in both(300)]
        yield run.iterations["seconds"].tolist(), [seconds for seconds, _ in wanted]
        yield sum(run.joules_of.values()), sum(joules for _, joules in wanted)

    return pairs


def of_kelle(batch):
    def pairs(model, machine):
        """Nothing is evicted."""
        geometry, physical = geometry_of(model), profiles.load(PHYSICAL)
        system, work = replace(KELLE[BASELINE], machine=machine), Work(24, 3000, batch)
        (step,) = decode_steps(geometry, [(system, work)], FITS.load().constants.once, physical, WHOLE)
        prompt = kelle_prefill(geometry, system, replace(work, batch=1), physical, WHOLE)
        loads = Tokens(decodes=batch, context=work.n_tokens), both(24)[0]
        for found, of, n in zip(((step.seconds, step.energy_j), prompt), loads, (batch, 24), strict=True):
            active = geometry.n_experts * (1.0 - (1.0 - geometry.top_k / geometry.n_experts) ** n)
            yield found, nominal(estimate(geometry, machine, of, active, weight_format="int8").cost)

    return pairs


def ndp_setup(model, machine, profile=PHYSICAL, context=600):
    return Setup(machine=machine, profile=profiles.load(profile), name=model, geometry=geometry_of(model), context_tokens=context)


def ndp_routing(made, n=1):
    """n sequences of one decode step each."""
    g, rng = made.geometry, np.random.default_rng(0)
    shape = (n, len(g.moe_layers), g.n_experts)
    ids = rng.random((n, 1, *shape[1:])).argsort(axis=-1)[..., : g.top_k].astype(np.int16)
    counts = rng.integers(0, 40, shape).astype(np.int32)
    return CXLNDPRouting(
        "made-up", "synthetic", tuple(g.moe_layers), np.arange(n), counts, rng.random(shape), ids, np.ones(n, np.int32)
    )


def of_ndp(model, machine):
    """All experts on the GPU, at every end."""
    made = ndp_setup(model, machine)
    g, tape = made.geometry, ndp_routing(made)
    decoded = ndp.replay(tape, ndp.place(tape, 1, g.n_experts), made, ours(16))
    prompt = ndp_prefill(made, ours(16), 64, 1, g.n_experts, held_experts=g.n_experts)
    loads = Tokens(decodes=1, context=600), both(64)[0]
    for found, of, active in zip((decoded, prompt.cost), loads, (g.top_k, g.n_experts), strict=True):
        one = estimate(g, machine, of, active, made.fits).cost
        for what in ("seconds", "joules"):
            yield tuple([getattr(getattr(cost, what), end)[0] for end in ENDS] for cost in (found, one))


def of_elmoe3d(profile):
    def pairs(model, machine):
        """A step of AR with all experts held; joules at every end."""
        if machine.roles.expert_cache:  # else all experts lie where they are read
            machine = with_values(machine, {f"tiers.{machine.roles.expert_cache}.capacity_bytes": 1e13})
        geometry = geometry_of(model)
        speculation = Speculation(verify_tokens=5.0, draft_tokens=4.0, growth=0.9, fade=0.4)
        fit = ELMoE3DConstants("", "", speculation, {model: ModelLaw(beta=0.4, exponent=0.8)})
        table = pl.DataFrame({"model": model, "machine": machine.name, "scheme": "Elastic-SD", "batch": 4})
        points = elmoe3d.points_of(table, fit, accepted_len=2.0, context_tokens=700)
        of = elmoe3d.Setup({model: (geometry, STATIC_FORMAT)}, {machine.name: machine})
        found = evaluate(elmoe3d.as_points(points, of), profiles.load(profile), with_joules=True).ar
        step = Tokens(decodes=4, context=700)
        cost = estimate(geometry, machine, step, float(found.experts[0]), None, STATIC_FORMAT, profile, KV_FORMAT).cost
        beside = {"links"} if profile == "elmoe3d" else set()  # partial sums between the units of the engine
        joules = found.joules[[part not in beside for part in PARTS], :, 0].sum(axis=0)
        yield joules.tolist(), [getattr(cost.joules, end)[0] for end in ENDS]
        yield found.seconds[0], cost.seconds.value[0]

    return pairs


ENGINES = {
    **{f"experts, {expert_format}": of_a_trace(expert_format) for expert_format in ("bf16", "int8-g32")},
    **{f"serving, {name}": of_serving(is_timed) for name, is_timed in (("operators", True), ("roofline", False))},
    **{f"kelle, batch {batch}": of_kelle(batch) for batch in (1, 7)},
    **{f"elmoe3d, {profile}": of_elmoe3d(profile) for profile in (PHYSICAL, "elmoe3d")},
    "cxl_ndp": of_ndp,
}
CASES = [(engine, model) for engine in ENGINES for model in (MODELS[:1] if "int8" in engine else MODELS)]
CASES += [(engine, MIXED) for engine in ("experts, bf16", "serving, roofline", "elmoe3d, physical", "cxl_ndp")]
CASES += [(f"serving, {name}", "qwen3-8b") for name in ("operators", "roofline")]
SLOW = {("serving, operators", model) for model in MODELS if model != "qwen3-30b-a3b"}  # each compiles code of its own


def parts():
    """Each case on every third machine, by turns from model to model, so that an engine comes to all; of engines with one or
    two models on every other. Slow, on the rest."""
    turns = Counter[str]()
    for engine, model in CASES:
        every = 2 if engine in ("experts, int8-g32", "serving, operators") else 3
        now, is_slow = list(MACHINES)[turns[engine] % every :: every], (engine, model) in SLOW
        turns[engine] += not is_slow
        yield pytest.param(engine, model, now, marks=[pytest.mark.slow] * is_slow, id=f"{engine}-{model}")
        rest = [name for name in MACHINES if name not in now]
        yield pytest.param(engine, model, rest, marks=pytest.mark.slow, id=f"{engine}-{model}, rest")


@pytest.mark.parametrize(("engine", "model", "machines"), parts())
def test_an_engine_gives_the_step_of_estimate(engine, model, machines):
    for name in machines:
        machine = MACHINES[name]
        if geometry_of(model).n_heads % machine.n_devices == 0:
            for found, wanted in ENGINES[engine](model, machine):
                assert found == pytest.approx(wanted, rel=1e-9), name


def test_attention_over_a_tier_of_its_own_starts_one_kernel_and_takes_no_time_measured_elsewhere():
    """A GPU with such a tier, which holds a part of the keys and values, or all: to the kernel its start alone is left."""
    gpu, model = load("h100"), "qwen3-8b"
    roles = replace(gpu.roles, kv_cache="kv", reads=("hbm", "kv"))
    machine = replace(gpu, name="h100-kv", tiers={**gpu.tiers, "kv": load("kelle-edram").tiers["kv"]}, roles=roles)
    for found, wanted in of_serving(True)(model, machine):
        assert found == pytest.approx(wanted, rel=1e-9)
    large = with_values(machine, {"tiers.kv.capacity_bytes": 1e13})
    step = estimate(geometry_of(model), large, both(9000)[1], 0.0, fits_of(machine, "bf16"))
    far = step.operations().filter(pl.col("operation") == "decode attention")["seconds"]
    assert far.to_list() == pytest.approx([machine.compute.launch_s["attention"].value] * far.len())


@pytest.mark.parametrize(("name", "profile"), [
    pytest.param(name, profile, marks=[pytest.mark.slow] * ((i + j) % 2))
    for i, name in enumerate(MACHINES)
    for j, profile in enumerate((PHYSICAL, "cxl_ndp"))
])  # fmt: skip
def test_every_ndp_system_runs_on_every_machine(name, profile):
    made = ndp_setup("deepseek-v2-lite", MACHINES[name], profile, 768)
    tape = ndp_routing(made, 4)
    placed = ndp.place(tape, 4, 20)
    of = ("OURS-3", "OURS-16", "MoNDE", "MoNDE never", "MoNDE always", "MoNDE ema", "HOBBIT")
    for system in (system_of(system, made, overlaps=bool((n + len(name)) % 2)) for n, system in enumerate(of)):
        found = ndp.replay(tape, placed, made, system)
        assert (found.seconds.value > 0).all()
        assert (found.seconds.low <= found.seconds.value * (1 + 1e-12)).all()
        assert (found.seconds.value <= found.seconds.high * (1 + 1e-12)).all()
        assert ndp_prefill(made, system, 64, 4, 20).seconds > 0
        assert all(np.isfinite(value) for key, value in found.metrics().items() if key != "ndp_gain")


@pytest.mark.parametrize(("first", "profile"), enumerate(["physical", "kelle", "slicemoe", "gpu_operators"]))
def test_every_kelle_system_runs_on_every_machine(first, profile):
    """In two of four profiles. An absent KV memory changes where keys and values lie, and is said."""
    work, held, costs = Work(512, 1024, 4, 256), FITS.load().constants.once, profiles.load(profile)
    for system in (replace(of, machine=machine) for machine in [*MACHINES.values()][first % 2 :: 2] for of in KELLE.values()):
        for geometry in map(geometry_of, ("llama-2-7b", "qwen3-30b-a3b")):
            (step,) = decode_steps(geometry, [(system, work)], held, costs, WHOLE)
            assert np.isfinite([step.seconds, *step.joules.values()]).all()
            assert step.seconds > 0
            assert any("no KV memory" in note for note in step.notes) == (not system.machine.roles.kv_cache)
            assert min(kelle_prefill(geometry, system, work, costs, WHOLE)) > 0


@pytest.mark.parametrize(
    ("machine", "how", "words"),
    [
        ("h100-cxl-ndp", NEAR, ()),
        ("elmoe3d-xpu-pim", NEAR, ("no tier in front of the experts",)),
        ("elmoe3d-xpu-nmp", IN_PLACE, ("no tier in front of the experts", "read in place from ext")),
        ("elmoe3d-8gb", IN_PLACE, ("read in place from ext",)),
        ("h100", IN_PLACE, ("no tier in front of the experts", "read in place from hbm")),
        ("phone-lpddr5x-ufs4", FETCHED, ("fetched, at their replicas' bits",)),
    ],
)
def test_what_a_machine_lacks_changes_the_decision_and_is_said(machine, how, words):
    made = ndp_setup("mixtral-8x7b", MACHINES[machine])
    assert made.elsewhere(ours(3)) == how
    said = made.decided(ours(3))
    assert len(said) == len(words)
    assert all(word in text for word, text in zip(words, said, strict=True))


def test_bits_and_places_move_what_they_should_and_prompts_alone_are_prefill():
    """On a machine without near compute, fewer bits are fetched; read in place, fewer are read; and computed as wide as ever."""
    for machine in ("phone-lpddr5x-ufs4", "elmoe3d-8gb", "h100-cxl-ndp"):
        made = ndp_setup("mixtral-8x7b", MACHINES[machine])
        tape = ndp_routing(made, 2)
        placed = ndp.place(tape, 2, 2)
        seconds = [float(ndp.replay(tape, placed, made, ours(bits)).seconds.value[0]) for bits in (1, 2, 3, 4, 16)]
        assert seconds == sorted(seconds)
        assert seconds[0] < seconds[-1]
    made = ndp_setup("deepseek-v2-lite", MACHINES["h100"])
    for tokens, phase in ((Tokens(prompt=9.0), "prefill"), (Tokens(decodes=1.0, context=5.0, prompt=9.0), "decode")):
        rows = steps_of(made.geometry, made.machine, tokens, (), made.blocks).rows
        assert {row.phase for row in rows if row.kind in ("proj", "router", "shared", "dense_ffn", "head")} == {phase}
