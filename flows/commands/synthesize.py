"""synthesize, calibrate router: tapes drawn from a generator of router logits, and the fit of its one fitted parameter."""

from typing import Annotated

from tokentape.flows.console import note, number, percent, print_table, progress_bar
from tokentape.flows.options import StoreOption, option


def synthesize(
    like: Annotated[str, option("A shipped model (`tokentape models list`) or the path of a config.json.")],
    requests: Annotated[int, option("Requests, run back to back.")] = 8,
    prompt: Annotated[int, option("Tokens of every prompt.")] = 500,
    output: Annotated[int, option("Tokens generated after every prompt; 0 makes prefill only.")] = 128,
    seed: Annotated[int, option("Another seed is another model of the same kind and other requests.")] = 0,
    scores: Annotated[bool, option("Keep all router logits: policies that reroute need them.", "--scores/--no-scores")] = True,
    routing: Annotated[
        str, option("popular (experts are, tokens drift), context (prompts foretell their decode), table (drawn from --counts).")
    ] = "popular",
    counts: Annotated[str | None, option("table: counts per expert: JSON (FILE#KEY/KEY: a part), .npy, SGLang's dump.")] = None,
    store: StoreOption = None,
) -> None:
    """Make a tape of a model that cannot be run here, from a generator of router logits. Prints the trace id.

    Two models are calibrated: the generator misses an LRU cache as often as they were measured to (docs/synthetic.md). With
    --routing context Mixtral-8x7B is: prompts are as like their decode as published. Any other gets the generator's defaults, and
    the tape says so.

    tokentape synthesize --like DeepSeek-V2-Lite
    tokentape synthesize --like Qwen1.5-MoE-A2.7B --requests 100 --seed 1 --no-scores
    tokentape synthesize --like ./my-model/config.json
    tokentape synthesize --like Mixtral-8x7B --routing context --requests 64 --prompt 128 --no-scores
    tokentape synthesize --like OLMoE-1B-7B --routing table --counts counts.json.gz#olmoe
    """
    from tokentape.capture.synthetic import profiles
    from tokentape.capture.synthetic.tape import SynthesisSettings
    from tokentape.capture.synthetic.tape import synthesize as draw
    from tokentape.warehouse import models

    settings = SynthesisSettings(requests=requests, prompt=prompt, output=output, seed=seed, scores=scores)
    model = models.load(like)
    drawn = profiles.of_routing(routing, model.name, model.geometry, counts, model.config)
    with progress_bar(f"synthesize {model.name}") as show:
        trace_id = draw(model.name, model.geometry, settings, store, show, drawn=drawn)
    told = store.open(trace_id).manifest.statistics
    if not told["is_calibrated"]:
        note(told["note"])
    if told["achieved"]["lru_miss_frac"] is not None:
        note(f"LRU over half of every layer's experts misses {percent(told['achieved']['lru_miss_frac'])} of decode lookups")
    print(trace_id)


def calibrate_router() -> None:
    """Fit the synthetic router's popularity again to the published LRU miss rates; prints what ships beside what is found.

    Under a minute. Fits only to claims whose role is `calibrate`.

    tokentape calibrate router
    """
    from tokentape.capture.synthetic import calibrate, profiles
    from tokentape.warehouse import load, models

    claims, names = load.claims().to_pylist(), list(profiles.FITS)
    seeds, length = profiles.calibration()
    rows = []
    with progress_bar("calibrate router") as show:
        for i, name in enumerate(names):
            show(i, len(names), name)
            shipped = profiles.FITS[name]
            aim = calibrate.anchor(claims, shipped["claim_id"])
            sd_b, missed = calibrate.calibrate(profiles.default_generator(), models.load(name).geometry, aim, seeds, length)
            rows.append((name, aim, number(shipped["sd_b"], ".3f"), number(sd_b, ".3f"), number(missed, ".4f")))
    columns = ("model", "LRU miss rate of the anchor", "sd_b shipped", "sd_b found", "LRU miss rate reached")
    print_table("", columns, rows, numbers=columns[1:])
