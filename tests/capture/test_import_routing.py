"""Any table of routing by its columns: the public formats we know, one file or many, and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import importer_cases
import numpy as np
import polars as pl
import pytest

from tokentape.capture.importers import routing_columns, table_files
from tokentape.capture.importers.limits import BadImport
from tokentape.capture.importers.routing_columns import PRESETS, Layout
from tokentape.capture.importers.routing_table import import_routing
from tokentape.flows.cli import main
from tokentape.warehouse.models import config_path
from tokentape.warehouse.tape import Store, Tape

PROMPT, DECODED, LAYERS, K, E = 3, 2, (1, 2), 2, 8
CONFIG = importer_cases.CONFIG | {"num_experts": E, "num_experts_per_tok": K}


def rows() -> list[dict[str, Any]]:
    """Two requests, interleaved token by token, as a log of an engine would have them."""
    rng = np.random.default_rng(0)
    found = []
    for position in range(PROMPT + DECODED):
        for request in ("b", "a"):
            for layer in LAYERS:
                ids, weight = rng.permutation(E)[:K].tolist(), float(rng.random()) / 2
                phase = "decode" if position >= PROMPT else "prefill"
                found.append(
                    {"req": request, "tok": position, "layer": layer, "ids": ids, "w": [weight, 1 - weight], "phase": phase}
                )
    return found


NAMED = {"request": "req", "position": "tok", "experts": "ids", "weights": "w"}


def write(folder: Path, form: str, content: list[dict[str, Any]], name: str = "log") -> Path:
    path = folder / f"{name}.{form}"
    if form == "jsonl":
        lines = [{"type": "meta"}, *(row | {"type": "route", "kept": True} for row in content)]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    elif form == "csv":
        pl.DataFrame([{key: str(value) for key, value in row.items()} for row in content]).write_csv(path)
    else:
        pl.DataFrame(content).write_parquet(path)
    return path


@pytest.fixture
def imported(tmp_path: Path) -> Callable[..., Tape]:
    def run(paths: Path | list[Path], layout: Layout, **more: Any) -> Tape:
        store = Store(str(tmp_path / "store"))
        more = more or {"n_experts": E}
        return store.open(import_routing([paths] if isinstance(paths, Path) else paths, store, layout, **more))

    return run


def check(tape: Tape) -> None:
    """The tape has every id and weight of `rows`, by falling weight, and each request's prefill as one pass."""
    found = {
        (r["request_id"], r["position"], r["layer"]): (r["expert_ids"], r["gate_weights"])
        for r in tape.read("routing").to_dicts()
    }
    for row in rows():
        ids, weights = found.pop(({"b": 0, "a": 1}[row["req"]], row["tok"], row["layer"]))
        assert ids == row["ids"][::-1]
        assert weights == pytest.approx(row["w"][::-1], abs=1e-7)
    assert not found
    assert tape.read("passes")["n_tokens"].to_list() == [PROMPT, *[1] * DECODED] * 2
    assert tape.read("requests")["n_prompt_tokens"].to_list() == [PROMPT] * 2
    assert tape.read("routing").filter(pass_id=0)["layer"].to_list() == [1] * PROMPT + [2] * PROMPT


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_each_form_gives_the_same_rows(form: str, tmp_path: Path, imported: Callable[..., Tape]) -> None:
    layout = Layout(NAMED, where=("type", "route") if form == "jsonl" else None)
    tape = imported(write(tmp_path, form, rows()), layout)
    check(tape)
    named = {"request": "req", "position": "tok", "layer": "layer", "experts": "ids", "weights": "w", "phase": "phase"}
    assert tape.manifest.settings["columns"] == named
    assert (tape.manifest.settings["order"], tape.manifest.settings["files"]) == ("requests", [f"log.{form}"])
    if form == "jsonl":
        check(imported(tmp_path / "log.jsonl", Layout(NAMED, where=("kept", "true"))))  # as Parquet says it


@pytest.mark.parametrize("changed", [{}, {"tok": 1.0}, {"note": None}, {"note": "x"}, {"note": {}}])
def test_tables_are_read_in_blocks(changed: dict[str, Any], tmp_path: Path, imported: Callable[..., Tape], monkeypatch) -> None:
    monkeypatch.setattr(table_files, "BLOCK_ROWS", 3)
    monkeypatch.setattr(routing_columns, "BLOCK_ROWS", 3)
    content = rows()
    check(imported(write(tmp_path, "csv", content), Layout(NAMED)))
    content[4] |= changed
    check(imported(write(tmp_path, "jsonl", content), Layout(NAMED, where=("type", "route"))))


def test_categories_parts_and_one_expert_per_row_are_the_same_rows(tmp_path: Path, imported: Callable[..., Tape]) -> None:
    """As pandas writes categories."""
    path = write(tmp_path, "parquet", rows())
    pl.read_parquet(path).with_columns(pl.col("phase").cast(pl.Categorical)).write_parquet(path)
    check(imported(path, Layout(NAMED)))
    first, second = write(tmp_path, "csv", rows()[:9], "x"), write(tmp_path, "csv", rows()[9:], "a")
    tape = imported([first, second], Layout(NAMED))
    check(tape)
    assert tape.manifest.settings["files"] == ["x.csv", "a.csv"]
    single = [row | {"ids": e, "w": w} for row in rows() for e, w in zip(row["ids"], row["w"], strict=True)]
    for form in ("csv", "parquet"):
        check(imported(write(tmp_path, form, single), Layout(NAMED)))


def test_tokens_that_a_request_skips_are_missing_rows(tmp_path: Path, imported: Callable[..., Tape]) -> None:
    tape = imported(write(tmp_path, "csv", [row for row in rows() if row["tok"] != PROMPT]), Layout(NAMED))
    assert tape.manifest.flags["missing_rows"] | {"missing_by_layer": {}} == {
        "expected": len(rows()), "found": len(rows()) - 2 * len(LAYERS), "missing_by_layer": {}
    }  # fmt: skip
    assert tape.read("tokens").height == 2 * (PROMPT + DECODED - 1), "what is flagged is no damage"
    inner = imported(write(tmp_path, "csv", [row for row in rows() if row["tok"] not in (1, PROMPT)], "inner"), Layout(NAMED))
    assert inner.read("requests").select("n_prompt_tokens", "n_output_tokens").rows() == [(PROMPT, DECODED)] * 2


def test_rows_as_executed_keep_their_order_and_widths_tell_decodes(tmp_path: Path, imported: Callable[..., Tape]) -> None:
    decoded = imported(write(tmp_path, "csv", [row for row in rows() if row["tok"] >= PROMPT], "decoded"), Layout(NAMED))
    assert "duplicate_prompts" not in decoded.manifest.flags, "no prompt is recorded"
    tape = imported(write(tmp_path, "csv", rows()), Layout(NAMED, order="executed"))
    assert tape.read("passes")["request_ids"].to_list() == [[0], [1]] * (PROMPT + DECODED)
    assert tape.manifest.settings["order"] == "executed"
    path = tmp_path / "widths.csv"
    path.write_text("layer,expert_ids,position\n0,1 2,0\n0,3 4,1\n1,1 2,0\n1,3 4,1\n0,5 6,2\n1,5 6,2\n")
    tape = imported(path, Layout({"phase": "widths"}, order="executed"))
    assert tape.read("passes").select("kind", "n_tokens").rows() == [("prefill", 2), ("decode", 1)]


# Files written by hand as the sources of presets.toml define them, and the rows that they hold: tests/data/README.md.
GOLDEN = Path(__file__).resolve().parents[1] / "data" / "presets"
EXPECTED = json.loads((GOLDEN / "expected.json").read_text())


@pytest.mark.parametrize("preset", PRESETS)
def test_a_published_format_by_its_preset(preset: str, tmp_path: Path, imported: Callable[..., Tape]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    paths, rows = [GOLDEN / name for name in EXPECTED[preset]["files"]], EXPECTED[preset]["rows"]
    tape = imported(paths, Layout.of(preset, {}), config_path=tmp_path / "config.json")
    columns = (tape.read("routing")[name].to_list() for name in ("request_id", "position", "layer", "expert_ids"))
    assert sorted([*key, *ids] for *key, ids in zip(*columns, strict=True)) == sorted(rows)
    assert tape.read("passes")["n_tokens"].to_list() == EXPECTED[preset]["passes"]
    assert (tape.geometry.hidden, tape.geometry.moe_layers, tape.manifest.model_id) == (64, (1, 2), "qwen3_moe")
    assert tape.manifest.settings["preset"] == preset
    n_tokens = len({tuple(row[:2]) for row in rows})
    assert ("missing_rows" in tape.manifest.flags) == (len(rows) < 2 * n_tokens)


def test_what_a_preset_reads_beside_its_rows(tmp_path: Path, imported: Callable[..., Tape]) -> None:
    lab = tmp_path / "lab.jsonl"
    first, _, generated = (GOLDEN / "moe-cache-lab.0.jsonl").read_text().partition("\n")
    lab.write_text(first + "\n" + generated.splitlines()[-1].replace("[]", "[0.75, 0.25]"))
    tape = imported(lab, Layout.of("moe-cache-lab", {}), config_path=None)
    assert (tape.geometry.n_experts, tape.manifest.model_id) == (8, "m")
    assert tape.read("routing")["gate_weights"].to_list() == [[0.75, 0.25]]
    unsaid, other = tmp_path / "unsaid.jsonl", tmp_path / "other.jsonl"
    unsaid.write_text(generated)
    other.write_text(first.replace("8", "64") + "\n" + generated)
    preset, golden = Layout.of("moe-cache-lab", {}), GOLDEN / "moe-cache-lab.0.jsonl"
    assert imported([unsaid], preset, config_path=None, n_experts=16).geometry.n_experts == 16
    assert imported([golden, unsaid], preset, config_path=None).geometry.n_experts == 8
    np.save(tmp_path / "run.npy", np.zeros((4, 2, 2)))
    with pytest.raises(BadImport, match=r"run\.npy: arrays are no table; `import vllm` takes an \.npz"):
        imported(tmp_path / "run.npy", Layout({}))
    with pytest.raises(BadImport, match=r"other\.jsonl: line 1 says \(64, 'm'\).*\.0\.jsonl says \(8, 'm'\)"):
        imported([golden, other], preset, config_path=None)
    misread = tmp_path / "misread.csv"  # eight experts in a token's order of rank, read as the choices of four tokens
    misread.write_text("".join(f"{layer},{e}\n" for layer in (0, 1) for e in (3, 1, 7, 0, 2, 6, 5, 4)))
    tape = imported(misread, Layout.of("moe-trace", {}, top_k=2))
    assert tape.manifest.flags["prompt_misread_frac"] == 1
    changed = imported(misread, Layout.of("moe-trace", {"phase": "decode"}, top_k=2, order="requests"))
    assert changed.read("passes")["kind"].to_list() == ["decode"] * 4
    shipped = imported(misread, Layout.of("moe-trace", {}, top_k=2), config_path=config_path("OLMoE-1B-7B"))
    assert (shipped.manifest.model_id, shipped.geometry.n_experts) == ("olmoe-1b-7b", 64)


BAD = json.loads((Path(__file__).parent / "routing_refused.json").read_text())


@pytest.mark.parametrize("name", BAD)
def test_bad_tables_are_refused_in_one_line(name: str, tmp_path: Path, imported: Callable[..., Tape]) -> None:
    text, changes, message = BAD[name]
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with importer_cases.refused(Store(str(tmp_path / "store")), message):
        given = {"columns": {} if "preset" in changes else {"phase": "prefill"}, "preset": None, **changes}
        imported(path, Layout.of(**given))


def test_the_command_and_its_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, "jsonl", rows())
    asked = ["import", "routing", str(path), "--request", "req", "--position", "tok", "--experts", "ids", "--weights", "w"]
    asked += ["--n-experts", str(E), "--store", str(tmp_path / "store")]
    with pytest.raises(SystemExit) as done:
        main([*asked, "--where", "type=route"])
    assert done.value.code == 0
    check(Store(str(tmp_path / "store")).open(capsys.readouterr().out.strip()))
    for options, message in (
        (["--where", "type"], "give COLUMN=VALUE"),
        (["--model", "c.json"], "give either the model (--model) or"),
        ([], "row 1: ids is None"),
        (["--where", "type=route", "--max-bytes", "99"], "more than 99 bytes once read"),
    ):
        with pytest.raises(SystemExit) as done:
            main([*asked, *options])
        assert done.value.code == 2
        assert message in capsys.readouterr().err
