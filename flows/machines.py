"""Machines at rest: rows of tables `machines` and `hardware_numbers`, for pages and questions."""

from functools import lru_cache
from typing import Any

from tokentape.hw import catalogue, spec
from tokentape.hw.spec import HardwareSpec
from tokentape.warehouse.results import write_rows
from tokentape.warehouse.tape import Store


def rows(machine: HardwareSpec) -> dict[str, list[dict[str, Any]]]:
    """The machine's row and one for each of its numbers, by table."""
    told = ("value", "low", "high", "source", "is_assumed")
    numbers = [
        {"hardware": machine.name, "key": key, "unit": catalogue.unit(key)} | {name: getattr(number, name) for name in told}
        for key, number in machine.numbers()
    ]
    itself = {"hardware": machine.name, "hardware_sha256": machine.sha256}
    itself |= {"fast_tier": machine.fast, "backing_tier": machine.backing}
    itself |= {name: getattr(machine, name) for name in ("title", "engine", "dtype", "n_devices")}
    return {"machines": [itself], "hardware_numbers": numbers}


def record(store: Store, machine: HardwareSpec) -> None:
    """Writes the machine beside the results that ran on it; a later version of it replaces this one."""
    for table, of_table in rows(machine).items():
        write_rows(store, table, of_table, of=machine.name)


@lru_cache(maxsize=1)
def shipped() -> dict[str, list[dict[str, Any]]]:
    """Rows of every machine that ships with the project, by table."""
    every = [rows(spec.load(name)) for name in spec.shipped()]
    return {table: [row for of in every for row in of[table]] for table in every[0]}
