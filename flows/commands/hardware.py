"""hardware, calibrate, validate, step: machines as files, constants of GPU operators, how wrong they are, and what they say."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tokentape.flows.console import Shown, note, number, percent, print_json, print_table, progress_bar, quantity, say
from tokentape.flows.options import JsonOption, ProfileOption, StoreOption, argument, folder_named_by, option
from tokentape.warehouse.atomic_files import replace

if TYPE_CHECKING:
    import polars as pl

    from tokentape.hw.measured import Measurements, Setup
    from tokentape.hw.reachable import LeftOut
    from tokentape.hw.spec import HardwareSpec

TABLES = "measured tables"
TABLES_VARIABLE = "TOKENTAPE_GPU_TABLES"  # names their folder, which lies outside the project
FilesArgument = Annotated[
    list[Path] | None, argument("FILES", f"Measured tables (Parquet), or folders of them. [default: ${TABLES_VARIABLE}]")
]
MachinesOption = Annotated[list[str] | None, option("Your machine, for a device no shipped one is measured as.", "--hardware")]
FitsOption = Annotated[Path | None, option("Folder of constants of `tokentape calibrate gpu`, in place of shipped ones.")]
DtypeOption = Annotated[str, option("Of the tables' rows, those with this dtype.", "--dtype")]


def hardware_list() -> None:
    """List the machines that ship with the project, and how many of their numbers are assumed."""
    from tokentape.hw import catalogue, spec

    columns = ("machine", "what", "peak", "tiers: capacity at bandwidth", "roles: home < in front of it", "assumed numbers")
    print_table("", columns, catalogue.summary(spec.shipped()))


def hardware_show(name: Annotated[str, argument("NAME", "A shipped machine or my.toml.")]) -> None:
    """Show every number of a machine: value, range and source; and what lies where.

    tokentape hardware show h100
    tokentape hardware show my.toml
    """
    from tokentape.hw import catalogue, spec

    machine = spec.load(name)
    each = zip(catalogue.rows(machine), machine.numbers(), strict=True)
    rows = [
        (key, Shown(value, number.value), Shown(told, [number.low, number.high] if told else None), source)
        for (key, value, told, source), (_, number) in each
    ]
    title = f"{machine.name}: {machine.title}\n{catalogue.roles(machine)}"
    print_table(title, ("key", "value", "band", "source"), rows, numbers=("value",))


def hardware_diff(
    a: Annotated[str, argument("A", "A shipped machine or my.toml.")],
    b: Annotated[str, argument("B", "Another.")],
) -> None:
    """Show in what two machines differ: numbers, bands, sources, names of parts.

    tokentape hardware diff a100 h100
    """
    from tokentape.hw import catalogue, spec

    first, second = spec.load(a), spec.load(b)
    rows = catalogue.differences(first, second)
    print_table(f"{first.name} and {second.name}: {len(rows)} differences", ("key", first.name, second.name), rows)


def hardware_new(
    source: Annotated[str, argument("FROM", "The machine to start from: a shipped one or a .toml.")],
    name: Annotated[str, argument("NAME", "The new machine; its file is NAME.toml in this folder.")],
) -> None:
    """Copy a machine's file under a new name, to edit. It loads as it is, and works wherever --hardware is asked for.

    tokentape hardware new phone-lpddr5x-ufs4 my-phone && tokentape hardware show my-phone.toml
    """
    from tokentape.hw import spec
    from tokentape.hw.sourced import BadSpec

    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise ValueError(f"{name!r} is not a machine's name; use letters, digits, dots and dashes")
    path = Path(f"{name.removesuffix('.toml')}.toml")
    if path.exists():
        raise ValueError(f"{path} exists; choose another name, or remove it first")
    spec.load(source)
    origin = spec.find(source)
    text = origin.read_text(encoding="utf-8")
    named = f"name = {json.dumps(path.stem)}"
    head, opening, tables = text.partition("\n[")  # a name inside a table is another key
    head = re.sub(r"(?m)^(base\s*=\s*[\"'])(.+\.toml)(?=[\"'])", lambda of: of[1] + str((origin.parent / of[2]).resolve()), head)
    renamed, n_names = re.subn(r"(?m)^name\s*=.*$", named, head, count=1)
    replace(path, ((renamed if n_names else f"{named}\n{head}") + opening + tables).encode())
    try:
        spec.load(str(path))
    except BadSpec:
        path.unlink()
        raise
    note(f"{path}: a copy of {source}; edit it, then `tokentape hardware show {path}` checks it")


def calibrate_gpu(
    files: FilesArgument = None,
    out: Annotated[Path, option("Folder for the constants, one file per setup.")] = Path("fits"),
    hardware: MachinesOption = None,
    dtype: DtypeOption = "bfloat16",
    pooled: Annotated[
        bool, option("Also fit one set to all devices together, for GPUs that nobody measured.", "--pooled")
    ] = False,
    force: Annotated[bool, option("Write constants that are more than 50 % off on their own rows.", "--force")] = False,
    as_json: JsonOption = False,
) -> None:
    """Fit the GPU operator models to measured tables and print how well they do.

    Takes tables in the columns of NVIDIA's aiconfigurator: one row is one timed GEMM, MoE or attention operator. Every fifth
    distinct shape is held out of a second fit, whose error on those rows is printed too. Rows above 105 % of what the machine's
    file says it can do are left out, counted and named; constants that are off by more than 50 % on their own rows are refused.

    tokentape calibrate gpu my-gpu/ --hardware my-gpu.toml --out fits
    """
    import polars as pl

    from tokentape.hw import calibrate, reachable, validate
    from tokentape.hw.pooled import pool, refuse_one

    machines, tables, beyond = _read(_tables(files), dtype, hardware)
    if pooled:  # refused before the fits, not after
        refuse_one(tables)
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out}: a file; --out is a folder")
    by_setup: dict[Setup, list[calibrate.Fit]] = {}
    with progress_bar("calibrate") as show:
        for i, table in enumerate(tables):
            show(i, len(tables), f"{table.operator}, {table.setup}")
            machine = calibrate.machine_of(table.setup.device, machines)
            by_setup.setdefault(table.setup, []).append(calibrate.calibrate(table, machine))
    fitted = [{fit.operator: fit for fit in fits} for fits in by_setup.values()]
    errors = validate.errors(pl.concat(validate.compare(tables, fitted, machines)))
    own = errors.filter(pl.col("split") == "fitted").rows_by_key(("device", "framework", "version", "operator"), named=True)
    for fit in (fit for fits in by_setup.values() for fit in fits):
        of = own[fit.setup.device, fit.setup.framework, fit.setup.version, fit.operator]
        why = calibrate.unfit(fit, of[0]["mape_frac"])
        if why and not force:
            raise ValueError(why)
        if why:
            note(why)
    note(*map(reachable.said, filter(None, beyond)))
    for table in tables:
        if (slow := reachable.slow_rows(table)).size:
            note(reachable.said_slow(table, slow))
    out.mkdir(parents=True, exist_ok=True)
    if pooled:
        together = pool(tables, machines)
        by_setup[together[0].setup] = together
    for setup, fits in by_setup.items():
        path = out / calibrate.file_name(setup)
        replace(path, calibrate.text(fits))
        note(f"{path}: {len(fits)} operators, {sum(fit.n_rows for fit in fits):,} rows of {setup}")
    _print_errors(errors, as_json, [one for found in beyond for one in found])


def validate_hardware(
    files: FilesArgument = None,
    as_json: JsonOption = False,
    fits: FitsOption = None,
    hardware: MachinesOption = None,
    dtype: DtypeOption = "bfloat16",
    record: Annotated[bool, option("Write the rows to the store, for the validation page.", "--record")] = False,
    store: StoreOption = None,
) -> None:
    """Compare the cost models with measurements: DRAM against its anchors, GPU operators against measured tables.

    Prints mean, median and 95th percentile of |predicted / measured - 1| per operator and regime: on the rows the constants were
    fitted on, on rows held out, and on other devices. Without tables, the anchors that ship with the project are all there is.

    tokentape hardware validate
    tokentape hardware validate my-gpu/ --hardware my-gpu.toml --json
    """
    import polars as pl

    from tokentape.hw import calibrate, reachable, validate
    from tokentape.warehouse.results import write_rows

    compared, given = [validate.dram_anchors()], _tables(files)
    if given:
        machines, tables, beyond = _read(given, dtype, hardware)
        note(*map(reachable.said, filter(None, beyond)))
        compared += validate.compare(tables, calibrate.known(fits), machines)
    elif fits or hardware or dtype != "bfloat16":
        raise ValueError(f"--fits, --hardware and --dtype are of measured tables: give FILES, or ${TABLES_VARIABLE}")
    else:
        note(f"no measured tables given or in ${TABLES_VARIABLE}: GPU operators are not compared")
    found = pl.concat(compared)
    errors, points = validate.errors(found), validate.points(found)
    if record:
        write_rows(store, "validation", errors.to_dicts())
        write_rows(store, "validation_points", points.to_dicts())
        note(f"{errors.height} rows and {points.height} points recorded; `tokentape load` and `tokentape site` show them")
    _print_errors(errors, as_json)


def _tables(files: list[Path] | None) -> list[Path]:
    """The files given, else the folder of measured tables; empty if there is none. Raises ValueError if a file does not exist."""
    absent = [path for path in files or [] if not path.exists()]
    if absent:
        raise ValueError(f"{absent[0]}: no such file or folder of {TABLES}")
    if files:
        return files
    folder = folder_named_by(TABLES_VARIABLE, TABLES)
    return [folder] if folder else []


def _read(
    files: list[Path], dtype: str, hardware: list[str] | None
) -> tuple[tuple[HardwareSpec, ...], list[Measurements], list[list[LeftOut]]]:
    """The machines of one's own; the tables that count; by table, the rows that no fit and no error counts. Says what
    `calibrate.with_links` leaves out. Raises ValueError where that is all, BadSpec for a device without a machine."""
    from tokentape.hw import calibrate, measured, reachable, spec

    machines = tuple(spec.load(name) for name in hardware or [])
    tables, left_out = calibrate.with_links(measured.read(files, dtype), machines)
    note(*left_out)
    if not tables:
        raise ValueError("no measured table is left; see above")
    gpus = [calibrate.gpu_of(calibrate.machine_of(table.setup.device, machines), table.setup.dtype) for table in tables]
    return machines, tables, [reachable.split(table, gpu)[1] for table, gpu in zip(tables, gpus, strict=True)]


def _print_errors(errors: pl.DataFrame, as_json: bool, left_out: list[LeftOut] | None = None) -> None:
    """left_out: what a table says in a note, JSON as rows beside the errors."""
    if as_json:
        rows = errors.to_dicts()
        print_json(rows if left_out is None else {"errors": rows, "left_out": left_out})
        return
    shown = [
        (
            *(r["operator"], r["split"].replace("_", " "), r["device"], f"{r['framework']} {r['version']}", number(r["n"], ",")),
            *(percent(r[name]) for name in ("mape_frac", "median_frac", "p95_frac")),
        )
        for r in errors.sort("check", "operator", "split", "device", maintain_order=True).iter_rows(named=True)
    ]
    columns = ("operator", "split", "device", "measured in", "n", "mean", "median", "p95")
    print_table("|predicted / measured - 1|", columns, shown, numbers=columns[4:])


def step(
    model: Annotated[str, argument("MODEL", "A shipped model or the path of a config.json.")],
    hardware: Annotated[str, option("A shipped machine or my.toml.")] = "h100",
    batch: Annotated[int, option("Requests that decode one token each.")] = 16,
    context: Annotated[int, option("Tokens each of them attends to.")] = 2048,
    prompt: Annotated[int, option("Tokens of one prompt that the step processes too.")] = 0,
    trace: Annotated[str | None, option("Tape whose routing says how many experts the step touches.")] = None,
    coverage: Annotated[
        str, option("recorded (needs --trace), or a closed form: uniform, pigeonhole, power-law, reuse, heaps.")
    ] = "",
    expert_format: Annotated[str, option("bf16, fp16, fp8, int8-g32, int4, mxfp4.", "--weights")] = "bf16",
    roofline: Annotated[bool, option("Leave fitted operator constants out.", "--roofline")] = False,
    fits: FitsOption = None,
    profile: ProfileOption = None,
    record: Annotated[bool, option("Write the operations to the store, for the hardware page.", "--record")] = False,
    store: StoreOption = None,
) -> None:
    """Estimate one serving step of a model on a machine, operation by operation.

    On a GPU that operator constants were fitted for, times come from those; elsewhere from the roofline. How many experts a batch
    touches decides a MoE step: a tape of the model tells it, and the error of each closed form against the tape is printed.

    tokentape step gpu qwen3-30b-a3b --hardware h100 --batch 16 --context 4096
    tokentape step gpu mixtral-8x7b --hardware h100x2 --batch 32 --prompt 512 --coverage pigeonhole
    """
    from tokentape.flows.estimates import estimated
    from tokentape.flows.grid import load_hardware
    from tokentape.hw import calibrate
    from tokentape.hw.profile import ENDS
    from tokentape.replay.tokens import Tokens

    load = Tokens(decodes=batch, context=context, prompt=prompt)
    constants = {} if roofline else calibrate.fits_with(load_hardware(hardware), fits) if fits else None
    made = estimated(store, model, hardware, load, trace, coverage, expert_format, constants, profile)
    if record:
        made.write(store)
        note(f"step {made.step_id} recorded: `tokentape load` and `tokentape site` draw it")
    cost = made.step.cost
    seconds_of, joules = ([float(getattr(of, end)[0]) for end in ENDS] for of in (cost.seconds, cost.joules))
    rows = [
        (
            name,
            n,
            quantity(seconds, "s"),
            percent(seconds / seconds_of[0]),
            quantity(n_bytes, "B"),
            number(ops / n_bytes if n_bytes else 0.0, ",.1f"),
        )
        for name, n, seconds, n_bytes, ops in made.by_name().rows()
    ]
    columns = ("operation", "times", "seconds", "of the step", "bytes", "operations/byte")
    nominal, low, high = (quantity(end, "s") for end in seconds_of)
    print_table(f"{made.title}: {nominal} ({low} to {high})", columns, rows, numbers=columns[1:])
    parts = ", ".join(f"{part} {quantity(of.value[0], 'J')}" for part, of in cost.joules_of.items() if of.value[0])
    nominal, low, high = (quantity(end, "J") for end in joules)
    say(f"energy {nominal} ({low} to {high}): {parts}; mean power {joules[0] / seconds_of[0]:,.0f} W")
    say(*made.coverage)
    note(*(f"extrapolated: {sentence}" for sentence in made.outside))
