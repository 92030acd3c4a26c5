"""evaluate, orderings, fidelity: a model measured as it is, and with a policy inside it."""

from itertools import product
from typing import Annotated, Any

from tokentape.flows.console import Shown, band, note, number, percent, print_table, progress_bar, quantity
from tokentape.flows.options import DeviceOption, DtypeOption, ModelOption, StoreOption, option
from tokentape.policies.names import refuse_unknown

ParamOption = Annotated[
    list[str] | None,
    option(
        "Of slicemoe: router=cache_prior, router.strength=0.2, precision=dbsc, pair=MAT42, ... Of a KV policy: "
        "budget=64, sink=4, importance=mean, storage=int16, rate=1e-3, intervals=360,5400,1440,7200, ... Of cxl_ndp: "
        "losses=TRACE, bits=2, rule=prefix_split, hot=8, alpha=0.5, placement=prefill_guided, method=gptq, ... Of a system: "
        "prompt_tokens=64, decode_tokens=192, losses=TRACE, draft_depth=4, ...",
        "--param",
    ),
]
CacheOption = Annotated[str, option("Each request's cache, as a share of the experts' bytes.", "--cache")]
SchemeOption = Annotated[str, option("How low-bit weights follow from high-bit ones; none: weights as loaded.", "--scheme")]

SLICEMOE, CACHE_FRAC, SCHEME = "slicemoe", "37.5%", "amat"


def evaluate(
    model: ModelOption = "embedded",
    datasets: Annotated[str, option("Comma-separated, as --dataset of capture.")] = "code,docs,math,recall",
    max_items: Annotated[int | None, option("Items per data set. [default: as the model card]", min=1)] = None,
    policy: Annotated[
        str | None,
        option(
            "Run it inside the model: slicemoe, cxl_ndp, or a KV policy: kelle, aerp, aep, h2o, tova, snapkv, streaming, "
            "random, full; my.py:MyPolicy. [default: the model as it is]"
        ),
    ] = None,
    system: Annotated[
        str | None, option("Run a whole system inside the model: a shipped name, or my.toml (docs/systems.md).", "--system")
    ] = None,
    changes: Annotated[list[str] | None, option("Of --system: SLOT=POLICY or SLOT.PARAMETER=VALUE.", "--set")] = None,
    param: ParamOption = None,
    cache: CacheOption = CACHE_FRAC,
    scheme: SchemeOption = SCHEME,
    seeds: Annotated[int, option("Of a policy or system: how many seeds, each on text or items of its own.", min=1)] = 1,
    tape: Annotated[
        bool, option("Also record a policy's routing and the model's own, a tape per data set and seed.", "--tape")
    ] = False,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
    store: StoreOption = None,
) -> None:
    """Measure a model, or a policy inside it. Writes table `quality`.

    Without a policy: bits per byte on text, exact match where the data set has answers. With one: perplexity, KL and acceptance
    against the unmodified model and the miss rate or KV bytes that were really had, or exact match and its difference from the
    unmodified model's.

    tokentape evaluate --model embedded
    tokentape evaluate --datasets code --policy slicemoe --param pair=MAT42 --param router=cache_prior --cache 50%
    tokentape evaluate --datasets code,recall --policy kelle --param budget=64 --param sink=4
    tokentape evaluate --datasets code --policy full --param storage=quarot
    tokentape evaluate --datasets code,recall --system kelle --set kv.budget=64
    tokentape evaluate --datasets code --policy cxl_ndp --param losses=embedded-docs --param bits=2 --param rule=reversed
    """
    from tokentape.policies.registry import blamed
    from tokentape.policies.resolve import parse
    from tokentape.policies.slots import parse_settings, system_of
    from tokentape.warehouse.results import write_rows

    names = _texts(datasets)
    if tape and policy is None:
        raise ValueError("--tape records what a policy applies; give --policy, or use `tokentape capture` for the model as it is")
    if changes and system is None:
        raise ValueError("--set changes a system; give --system")
    if system is not None and (policy is not None or tape or cache != CACHE_FRAC):
        raise ValueError("--system says what runs: leave out --policy, --tape and --cache (room: --set residency.budget=25%)")
    if tape and policy != SLICEMOE:
        raise ValueError(f"--tape records applied routing, which {policy} does not change; leave it out")
    said: list[str] = []
    with blamed("kv", policy), progress_bar("evaluate") as show:
        if policy is None and system is None:
            from tokentape.capture.evaluate import evaluate as measure

            rows = measure(model, names, max_items, device, dtype, show)
        else:
            from tokentape.flows.inside_model import policy_tried, system_tried

            given, made = (parse(param), max_items, store), system and system_of(system, parse_settings(changes))
            run = system_tried(made, *given, scheme) if made else policy_tried(str(policy), *given, cache, scheme)
            with made.blamed() if made else blamed("kv", None):
                rows, said = _measured(model, names, run, seeds, device, dtype, show, store if tape else None)
    write_rows(store, "quality", rows)
    columns = ("dataset", "seed", *(c for c in MEASURED if any(row[c] is not None for row in rows)), "n_items", "n_tokens")
    shown = [[number(row[c], ".4f") if isinstance(row[c], float) else row[c] for c in columns] for row in rows]
    print_table(model, columns, shown, numbers=columns[1:])
    note(*said)


def orderings(
    model: ModelOption = "embedded",
    of: Annotated[
        str, option("experts (precision, router), drafts (what is accepted), kv (eviction, refresh), or cxl_ndp (bit widths).")
    ] = "experts",
    seeds: Annotated[int, option("Each has windows of its own.", min=1)] = 4,
    store: StoreOption = None,
) -> None:
    """Measure which policy beats which inside a model, against margins. Writes table `orderings`.

    Held-out text, teacher-forced; about three minutes for the embedded model, seven with --of kv, five with --of cxl_ndp, which
    first captures the losses of the experts if the store has none. A row holds if every seed keeps the margin.

    tokentape orderings --model embedded
    tokentape orderings --model embedded --of kv
    tokentape orderings --model embedded --of cxl_ndp
    """
    from functools import partial

    from tokentape.capture import models
    from tokentape.capture import orderings as of_experts
    from tokentape.capture.cxl_ndp import orderings as of_bits
    from tokentape.capture.live import kv_orderings as of_kv
    from tokentape.warehouse.results import write_rows

    kinds: dict[str, tuple[str, Any, Any]] = {  # the study that asks the same, what is asked, a seed's measurements
        "experts": ("slicemoe", of_experts.ORDERINGS, of_experts.Lab),
        "drafts": ("elmoe3d", of_experts.ACCEPTANCE_ORDERINGS, of_experts.Lab),
        "kv": ("kelle", of_kv.ORDERINGS, of_kv.Lab),
        "cxl_ndp": ("cxl_ndp", of_bits.ORDERINGS, of_bits.Lab),
    }
    refuse_unknown("kind of orderings", of, kinds)
    study, asked, lab = kinds[of]
    loaded = models.load(models.find(model))
    with progress_bar("orderings") as show:
        measures = partial(lab, _bench(loaded, show, store) if of == "cxl_ndp" else loaded)
        rows = of_experts.measured(loaded, asked, measures, range(seeds), show)
    write_rows(store, "orderings", [{"study": study} | row for row in rows])
    shown = [
        (
            r["assertion"],
            r["margin"],
            number(r["mean"], ".3f"),
            band(r["low"], r["high"], "{:.3f}".format),
            Shown("yes" if r["holds"] else "NO", r["holds"]),
        )
        for r in rows
    ]
    columns = ("ratio or difference", "margin", "mean", f"over {seeds} seeds", "holds")
    print_table(f"{model}: {sum(r['holds'] for r in rows)} of {len(rows)} hold", columns, shown, numbers=columns[2:3])


def _bench(loaded: Any, progress: Any, store: Any) -> Any:
    """With the losses on `docs`, captured now if the store does not hold them."""
    from tokentape.capture.cxl_ndp.orderings import CALIBRATION, Bench
    from tokentape.capture.run import CaptureSettings, capture

    settings = CaptureSettings(loaded.source.model_id, tables=("losses",), **CALIBRATION)
    trace_id = capture(settings, store, resume=True, progress=progress)
    return Bench(loaded, store.open(trace_id))


def fidelity(
    model: ModelOption = "embedded",
    datasets: Annotated[str, option("Comma-separated texts, as --dataset of capture.")] = "code",
    max_items: Annotated[int | None, option("Windows of text per seed. [default: 16]", min=1)] = None,
    param: Annotated[list[str] | None, option("Of slicemoe: router=cache_prior, precision=dbsc, pair=MAT42, ...")] = None,
    cache: CacheOption = CACHE_FRAC,
    scheme: SchemeOption = SCHEME,
    seeds: Annotated[int, option("Each has windows of its own.", min=1)] = 4,
    hardware: Annotated[str, option("A shipped machine or my.toml, for time and energy.")] = "slicemoe-xpu",
    store: StoreOption = None,
) -> None:
    """Compare open-loop replay with the closed loop: the same policy on the same text, replayed and inside the model.

    A policy that reroutes changes what the model does next, and a replay of recorded scores cannot know that. Prints misses,
    bytes, time and energy per decoded token both ways, mean and range over seeds, and writes table `fidelity`.

    tokentape fidelity --model embedded --param router=cache_prior --param precision=high-bit --cache 50%
    """
    names = _texts(datasets)
    from tokentape.flows.fidelity import UNITS, compare  # torch, once the texts are known to be there
    from tokentape.flows.grid import load_hardware
    from tokentape.flows.inside_model import policy_tried
    from tokentape.policies.resolve import parse
    from tokentape.warehouse.results import write_rows

    run: Any = policy_tried(SLICEMOE, parse(param), max_items, store, cache, scheme)
    with progress_bar("fidelity") as show:
        rows = compare(model, names, run, range(seeds), load_hardware(hardware), show)
    write_rows(store, "fidelity", rows)
    shown = []
    for name, unit in UNITS.items():
        pairs = [(row["open_loop"], row["closed_loop"]) for row in rows if row["metric"] == name]
        gaps = [opened / closed - 1 if closed else 0.0 for opened, closed in pairs]
        means = [sum(side) / len(pairs) for side in zip(*pairs, strict=True)]
        shown.append(
            (
                name,
                *(quantity(mean, unit) for mean in means),
                percent(sum(gaps) / len(gaps), "+.2f"),
                band(min(gaps), max(gaps), lambda gap: percent(gap, "+.2f")),
            )
        )
    columns = ("per decoded token", "open loop", "closed loop", "open / closed - 1", "over seeds")
    print_table(f"{model}: {run.parameters}", columns, shown, numbers=columns[1:])


def _texts(given: str) -> list[str]:
    """The names of data sets; of each a first item, since the last would else be found wrong when the others are done."""
    from tokentape.capture.datasets import items

    names = [name.strip() for name in given.split(",") if name.strip()]
    for name in names:
        items(name, 1)
    return names


def _measured(
    model: str, names: list[str], run: Any, seeds: int, device: str, dtype: str, show: Any, store: Any
) -> tuple[list[dict[str, Any]], list[str]]:
    """Rows of `quality`; how accuracy stands against the plain model's, and which tapes were recorded where there is a store."""
    from tokentape.capture import models
    from tokentape.capture.applied import AppliedTape
    from tokentape.capture.live.system import evaluate_system

    loaded = models.load(models.find(model), device, dtype)
    rows, said = [], []
    for name, seed in product(names, range(seeds)):
        tape = AppliedTape(store, loaded, name, run, seed) if store else None
        row, of = evaluate_system(loaded, name, run, seed, show, tape)
        rows.append(row)
        if of is not None:
            said.append(
                f"{name} seed {seed}: accuracy {row['accuracy']:.3f}, plain {of.plain:.3f}; difference "
                f"{of.difference:+.3f} (95 %: {of.low:+.3f} to {of.high:+.3f})"
            )
        if tape:
            natural = "applied routing, and the model's own as natural_ids; `tokentape replay` takes it"
            said.append(f"tape {tape.finish()}: {natural}")
    return rows, said


MEASURED = (
    *("bits_per_byte", "perplexity", "kl", "acceptance", "agreement_frac", "accuracy", "miss_frac", "flash_bytes_per_token"),
    *("kv_bytes", "recompute_ops", "hot_frac", "table_loss"),
)
