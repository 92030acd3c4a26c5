"""One replay from Python, of a policy or a whole system, and several beside each other."""

import html
from collections.abc import Mapping
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from tokentape.flows.grid import Cell, forget_changed, replay_once
from tokentape.flows.system_runs import Asked, run_asked, workload_of
from tokentape.hw.profile import PHYSICAL
from tokentape.policies import registry
from tokentape.policies.names import refuse_unknown
from tokentape.policies.resolve import told
from tokentape.policies.systems import System
from tokentape.replay.result import ReplayResult
from tokentape.replay.semantics import CHOICES, Semantics
from tokentape.stores import expect
from tokentape.warehouse.recorded import Tape

SHOWN = ("hit_frac", "decode_step_s", "decode_energy_j_per_token", "tbt_mean_s", "energy_j_per_output_token")


@dataclass(frozen=True, eq=False)
class Run:
    """A finished replay. run_id: of its files in the store, where `tokentape load` finds them. `run["hit_frac"]` is a number."""

    run_id: str
    result: ReplayResult

    @property
    def settings(self) -> dict[str, Any]:
        """What ran: tape, policy and parameters, machine, capacity, semantics, origin, and what is extrapolated."""
        return self.result.settings

    @property
    def metrics(self) -> pl.DataFrame:
        """metric, value, unit, low, high (of the machine's band), denominator; a row each."""
        return pl.DataFrame([{"metric": name, **asdict(metric)} for name, metric in self.result.metrics.items()])

    @property
    def timeline(self) -> pl.DataFrame:
        """A row per forward pass on the simulated clock, as table `timeline` (docs/warehouse.md); empty without a machine."""
        return pl.DataFrame(self.result.timeline)

    @property
    def requests(self) -> pl.DataFrame:
        """A row per request: time to first token, mean time between tokens, energy."""
        return pl.DataFrame(self.result.request_metrics)

    def __getitem__(self, metric: str) -> float:
        if metric not in self.result.metrics:
            raise KeyError(f"{metric}: the metrics are {', '.join(self.result.metrics)}")
        return self.result.metrics[metric].value

    def __repr__(self) -> str:
        of = self.settings
        found = ", ".join(f"{name} {self[name]:.4g}" for name in SHOWN if name in self.result.metrics)
        what = f"{of['policy']} at {of['capacity_frac']:.0%} {of['scope']} of" if "policy" in of else f"{of['system']} on"
        outside = "; an extrapolation" if of["is_extrapolated"] else ""
        return f"Run {self.run_id}: {what} {of['trace_id']} on {of['hardware']}: {found}{outside}"

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(repr(self))}</p>{self.metrics._repr_html_()}"


def run(
    tape: Tape,
    policy: Any,
    *,
    capacity: str,
    scope: str,
    machine: str | Path = "phone-lpddr5x-ufs4",
    params: Mapping[str, Any] | None = None,
    expert_format: str = "auto",
    seed: int = 0,
    profile: str | Path | None = None,
    **semantics: str,
) -> Run:
    """Replays a tape through a policy and writes the result beside the tape, unless it is there.

    policy: a name (`lru`), `my.py:MyCache`, or a policy object of the project. capacity: "50%", "1.5GB", "64 experts". scope:
    global or per-layer; there is no default, since their hit rates do not compare. machine: a shipped one or a TOML file.
    profile: how steps are priced, a name or a TOML file; physical by default. semantics: other fields of
    replay.semantics.Semantics. Raises ValueError naming what is wrong; nothing is written then.
    """
    _begin(tape)
    expect("params", params or {}, Mapping, '{"NAME": VALUE}')
    expect("seed", seed, (int, np.integer), "a whole number")
    for word in semantics:
        refuse_unknown("argument of run", word, [*(run.__kwdefaults__ or ()), *CHOICES])
    name, given = (str(policy), params or {}) if isinstance(policy, str | Path) else _told(policy, params)
    how = (str(machine), Semantics(scope, **semantics), capacity, expert_format, int(seed), str(profile or PHYSICAL))
    return Run(*replay_once(tape.store, Cell(tape.trace_id, name, tuple(given.items()), *how)))


def run_system(
    tape: Tape,
    system: str | Path,
    *,
    changes: Mapping[str, str] | None = None,
    workload: str = "",
    model: str | Path | None = None,
    machine: str | Path = "phone-lpddr5x-ufs4",
    expert_format: str = "auto",
    profile: str | Path | None = None,
) -> Run:
    """Replays a tape through a system of policies and writes the result beside the tape; of one that is there the numbers are
    read, without timeline and requests.

    system: a shipped one (`kelle`) or a TOML file. changes: of its slots, {"residency": "lfu", "residency.budget": "24GB"}.
    workload: "rate=2,batch=8". model: that the tape was taken from, where it records no widths, a name or a config.json. Raises
    ValueError naming what is wrong; nothing is written then.
    """
    _begin(tape)
    expect("changes", changes or {}, Mapping, '{"SLOT.WORD": "VALUE"}')
    expect("workload", workload or "", str, '"rate=2,batch=8"')
    told_as = {str(key): of if isinstance(of, Mapping) else str(of) for key, of in (changes or {}).items()}
    given = (workload_of(workload), told_as, None, str(model) if model else None, expert_format, str(profile or PHYSICAL))
    return Run(*run_asked(tape.store, Asked(tape.trace_id, str(system), str(machine), *given)))


def _begin(tape: Tape) -> None:
    expect("tape", tape, Tape, 'a Tape: store.tape("NAME")')
    forget_changed(tape)


def _told(policy: Any, params: Mapping[str, Any] | None) -> tuple[str, dict[str, Any]]:
    if params:
        raise ValueError("params are of a policy that is named; a policy object has its own")
    kind = "system" if isinstance(policy, System) else "residency"
    name = registry.name_of(kind, policy)
    is_found = name in {*registry.shipped(kind), *registry.installed()} or Path(name.rpartition(":")[0]).is_file()
    if not is_found or not is_dataclass(policy):
        raise ValueError(f"{policy!r} is no policy; give a name, my.py:MyCache, or an object of a dataclass of a file")
    return told(kind, policy)


def compare(*runs: Run) -> pl.DataFrame:
    """A row per run: run_id, policy or system, trace_id, hardware, scope, capacity_frac, seed, then every metric as a column,
    null where a run has none. Raises ValueError for no runs."""
    if not runs or not all(isinstance(one, Run) for one in runs):
        raise ValueError("runs are compared: compare(first, second), or compare(*runs)")
    named = ("policy", "system", "trace_id", "hardware", "scope", "capacity_frac", "seed")
    facts = [fact for fact in named if any(fact in one.settings for one in runs)]
    rows = [
        {"run_id": one.run_id, **{fact: one.settings.get(fact) for fact in facts}}
        | {name: metric.value for name, metric in one.result.metrics.items()}
        for one in runs
    ]
    return pl.DataFrame(rows, infer_schema_length=None)
