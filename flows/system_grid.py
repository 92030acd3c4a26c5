"""Systems in a study's `[[grid]]`: which runs there are, and at rest which of them stands where in the study's figure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokentape.flows.study import Study, given_of, matching, worded
from tokentape.flows.system_runs import VIEW, Asked, workload_of
from tokentape.hw.sourced import read_number
from tokentape.policies.slots import SLOTS
from tokentape.warehouse import results
from tokentape.warehouse.tape import Store

AS_GIVEN = ("budget", "model", "expert_format", "profile")


@dataclass(frozen=True)
class Point:
    """A run of a study. place: of its fields among those of the study; tapes that fit one pattern share it. told: where it stands
    in the study's figure, in words."""

    place: int
    told: Mapping[str, Any]
    asked: Asked


def expand(study: Study, store: Store) -> tuple[list[Point], list[str]]:
    """Every run, and patterns that no tape fits. Raises ValueError for a field that is wrong, and where no tape fits any."""
    points, without = list[Point](), dict[str, str]()
    for place, fields in enumerate(study.points()):
        try:
            fitting = matching((fields["trace"],), store.trace_ids())
        except ValueError as error:
            without[fields["trace"]] = str(error)
            continue
        every = [asked_of(fields, trace_id) for trace_id in fitting]
        said = {"series": fields["series"], "hardware": every[0].hardware.name}
        said |= {name: worded(fields, name) for name in ("panel", "line", "x")}
        points += [Point(place, said, asked) for asked in every]
    if not points:
        raise ValueError(f"study {study.name}: {next(iter(without.values()))}")
    return points, list(without.values())


def asked_of(fields: Mapping[str, Any], trace_id: str) -> Asked:
    """The run that a point's fields ask for, on a tape."""
    changes = {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in fields.items()
        if name.partition(".")[0] in SLOTS
    }
    workload = workload_of(",".join(f"{name}={value}" for name, value in given_of(fields, "workload").items()))
    given = {name: fields[name] for name in AS_GIVEN if name in fields}
    numbers = {key: read_number(value, f"machine.{key}", "told").value for key, value in given_of(fields, "machine").items()}
    return Asked(trace_id, fields["system"], fields["machine"], workload, changes, numbers=numbers, **given)


def write(store: Store, study: str, points: Sequence[Point], reasons: Mapping[str, str], kept: Iterable[Any] = ()) -> None:
    """Rows of `study_points`, beside those `kept`: of every point its run, or why there is none: reasons by what was asked."""
    there, rows = set(results.run_ids(store, VIEW)), [*kept]
    for point in sorted(points, key=lambda point: point.asked.trace_id):  # a tape is read once
        asked, reason, run_id = point.asked, reasons.get(repr(point.asked)), None
        if reason is None:
            run_id = asked.key(store, study)
            reason = None if run_id in there else "not run yet"
        rows.append(
            {"study": study, "place": point.place, **point.told}
            | {"system": asked.made(store).name if reason is None else asked.system}
            | {"trace_id": asked.trace_id, "seed": asked.workload.seed, "result_id": run_id, "reason": reason}
        )
    results.write_rows(store, "study_points", rows, of=study)
