"""One tape through the SliceMoE policy on one machine, open loop: `tokentape replay TRACE --policy slicemoe`."""

from __future__ import annotations

from collections.abc import Mapping

from tokentape.flows import machines, sources
from tokentape.flows.grid import load_hardware
from tokentape.flows.scored import composed, scored_trace
from tokentape.hw import calibrate
from tokentape.hw import profile as profiles
from tokentape.hw.profile import PHYSICAL
from tokentape.policies.resolve import Value
from tokentape.replay.capacity import bytes_of
from tokentape.replay.result import ReplayResult, tables_of
from tokentape.replay.slicemoe.replay import describe, replay_sliced
from tokentape.replay.system.routes import slices_of
from tokentape.replay.trace import Trace
from tokentape.warehouse import results
from tokentape.warehouse.at_rest import hash_of
from tokentape.warehouse.tape import Store

STUDY = "adhoc"
ENGINE = "tokentape.replay.slicemoe.replay"


def run(
    store: Store,
    prefix: str,
    params: Mapping[str, Value],
    hardware: str,
    capacity: str,
    start: str = "persistent",
    fetching: str = "blocking",
    seed: int = 0,
    profile: str = PHYSICAL,
) -> tuple[str, ReplayResult]:
    """Computes one replay and writes it unless it is there. capacity: 50%, 1.5GB or 64 experts, of those at high precision.

    Raises ValueError on bad input; nothing is written then.
    """
    machine, system = load_hardware(hardware), composed(params, store)
    trace, scores = scored_trace(store, prefix)
    size = bytes_of(capacity, trace.n_keys * sum(slices_of(trace.geometry, system.cache)), trace.n_keys)
    result = replay_sliced(trace, scores, system, machine, size, start=start, fetching=fetching, seed=seed, profile=profile)
    code = sources.sha256(ENGINE, fits=calibrate.files_of(machine))
    decided = _decided_by(store, trace, describe(system), machine.sha256, size)
    how = {"start": start, "fetching": fetching, "seed": seed, "profile": profiles.load(profile).sha256}
    key = hash_of(decided | how | {"sources": code})
    if key not in results.run_ids(store):
        machines.record(store, machine)
        results.write_replays(store, tables_of({key: result}, STUDY, {key: code}))
    return key, result


def _decided_by(store: Store, trace: Trace, system: str, machine_sha256: str, size: int) -> dict[str, object]:
    manifest = store.open(trace.trace_id).manifest.model_dump(mode="json", exclude={"created_utc"})
    return {
        "study": STUDY,
        "trace": manifest,
        "policy": system,
        "hardware": machine_sha256,
        "capacity_bytes": size,
    }
