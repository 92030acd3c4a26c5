"""Inside the model that ships: losses of every expert's replicas, perplexity with and without the selector, and tapes of routing.

A job is one file or one tape; finished ones are skipped.
"""

from dataclasses import dataclass
from functools import partial

from tokentape.capture import models
from tokentape.capture.cxl_ndp.orderings import METHODS, ORDERINGS, Bench, Lab
from tokentape.capture.live.quality import Cut
from tokentape.capture.orderings import measured
from tokentape.capture.plan import CaptureSettings
from tokentape.capture.run import capture as record
from tokentape.flows import sources
from tokentape.flows.study_file import Made
from tokentape.flows.systems.cxl_ndp.settings import Live, Settings
from tokentape.policies.mixed import FULL, MixedPrecision
from tokentape.warehouse.tape import Store

ENGINE = "tokentape.capture.cxl_ndp.orderings"
SELECTOR, REVERSED, UNIFORM = "prefix_split", "reversed", "uniform"


@dataclass(frozen=True)
class Job:
    """What is measured: quality of one seed, or the orderings of all."""

    what: str
    seed: int = 0

    def __str__(self) -> str:
        return f"{self.what} seed {self.seed}" if self.what == "quality" else self.what


def recorded(store: Store, study: Settings) -> list[str]:
    """Ids of the study's tapes of a live model, captured where they are missing."""
    of, tables = study.recorded, ("requests", "tokens", "passes", "routing")
    sizes = of.requests, of.prompt, of.output, of.batch_size
    return [record(CaptureSettings(of.model, dataset, tables, *sizes), store, resume=True) for dataset in of.datasets]


def jobs(study: Settings) -> list[Job]:
    """Everything measured inside the model."""
    return [Job("orderings"), *(Job("quality", seed) for seed in study.live.seeds)]


def policies(live: Live, hot: int, method: str) -> list[MixedPrecision]:
    """Full precision, and rules by mean bits; for GPTQ also alpha, placements and widths between, and losses weighted by use."""
    few = min(live.bits)
    found = [MixedPrecision(hot, rule=FULL)]
    found += [MixedPrecision(hot, bits, rule) for bits in live.bits for rule in (UNIFORM, SELECTOR, REVERSED)]
    if method == METHODS[0]:
        found += [MixedPrecision(hot, bits) for bits in live.selector_bits]
        found += [MixedPrecision(hot, few, alpha=alpha) for alpha in live.alphas]
        found += [MixedPrecision(hot, few, placement=name) for name in live.placements]
        found += [MixedPrecision(hot, bits, loss_weight="prefill_share") for bits in live.bits]
    return found


def run_job(trace_id: str, store: Store, study: Settings, job: Job) -> None:
    """Measures a job and writes its rows, unless they are there. trace_id: of the tape of losses."""
    live, losses = study.live, store.open(trace_id)
    table = "quality" if job.what == "quality" else "orderings"

    def make() -> Made:
        bench = Bench(
            models.load(models.find(study.recorded.model)),
            losses,
            Cut(prompt_tokens=live.prompt, decode_tokens=live.output, n_items=live.windows),
        )
        if table == "orderings":
            return {table: measured(bench.loaded, ORDERINGS, partial(Lab, bench), live.seeds)}
        lab = Lab(bench, job.seed)
        return {table: [lab.row(method, policy) for method in METHODS for policy in policies(live, bench.half, method)]}

    study.once(store, f"{job!r}/{trace_id}/{losses.content_sha256}/{live!r}/{sources.sha256(ENGINE)}", table, make)
