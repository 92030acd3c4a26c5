"""A system that no one published, in closed form: a decode step of a dense model read from one memory. This is all it takes."""

from pathlib import Path
from typing import Any

from tokentape.flows.grid import load_hardware
from tokentape.flows.running import Running
from tokentape.flows.study_file import StudyFile
from tokentape.warehouse import models
from tokentape.warehouse.at_rest import Point
from tokentape.warehouse.model_sizes import total_params


class Settings(StudyFile):
    """made_up_system.toml."""

    SHIPPED = Path(__file__).parent / "made_up_system.toml"

    models: tuple[str, ...]
    hardware: tuple[str, ...]
    bits: tuple[int, ...]


def run(at: Running) -> list[dict[str, Any]]:
    study = at.study
    points = [point(model, machine, bits) for model in study.models for machine in study.hardware for bits in study.bits]
    study.write_points(at.store, points)
    return []


def point(model: str, hardware: str, bits: int) -> Point:
    machine, n_bytes = load_hardware(hardware), total_params(models.load(model).geometry) * bits / 8
    step_s = n_bytes / machine.tiers[machine.fast].peak_bytes_per_s.value
    facts = {"model_id": model, "hardware": machine.name, "hardware_sha256": machine.sha256, "bits": bits}
    return Point(facts, {"step_s": step_s, "tokens_per_s": 1.0 / step_s}, {"precision": f"uniform bits={bits}"})
