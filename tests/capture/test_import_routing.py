"""Any table of routing by its columns: the public formats we know, one file or many, and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import importer_cases
import numpy as np
import polars as pl
import pytest

from tokentape.capture.importers.routing_columns import Columns, Layout
from tokentape.capture.importers.routing_table import import_routing
from tokentape.flows.cli import main
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


NAMED = Columns(request="req", position="tok", experts="ids", weights="w")


def write(folder: Path, form: str, content: list[dict[str, Any]], name: str = "log") -> Path:
    path = folder / f"{name}.{form}"
    if form == "jsonl":
        lines = [{"type": "meta"}, *(row | {"type": "route"} for row in content)]
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


def test_parts_of_one_table_in_the_order_given(tmp_path: Path, imported: Callable[..., Tape]) -> None:
    first, second = write(tmp_path, "csv", rows()[:9], "x"), write(tmp_path, "csv", rows()[9:], "a")
    tape = imported([first, second], Layout(NAMED))
    check(tape)
    assert tape.manifest.settings["files"] == ["x.csv", "a.csv"]


def test_one_expert_per_row(tmp_path: Path, imported: Callable[..., Tape]) -> None:
    single = [row | {"ids": e, "w": w} for row in rows() for e, w in zip(row["ids"], row["w"], strict=True)]
    for form in ("csv", "parquet"):
        check(imported(write(tmp_path, form, single), Layout(NAMED)))


def test_rows_as_executed_keep_their_order(tmp_path: Path, imported: Callable[..., Tape]) -> None:
    tape = imported(write(tmp_path, "csv", rows()), Layout(NAMED, order="executed"))
    assert tape.read("passes")["request_ids"].to_list() == [[0], [1]] * (PROMPT + DECODED)
    assert tape.manifest.settings["order"] == "executed"


def test_a_file_per_prompt_without_positions(tmp_path: Path, imported: Callable[..., Tape]) -> None:
    """The form of moe-beyond: layer after layer, the token as text, ids as a quoted list."""
    head = "Layer ID,Batch Number,Token,Activated Expert IDs\n"
    for name, shift in (("p1", 0), ("p2", 3)):
        lines = [
            f'{layer},0,"a, b","[{(layer + t + shift) % E}, {(layer + t + shift + 1) % E}]"' for layer in LAYERS for t in range(4)
        ]
        (tmp_path / f"{name}.csv").write_text(head + "\n".join(lines) + "\n")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    layout = Layout(Columns(layer="Layer ID", experts="Activated Expert IDs", phase="prefill"), files="requests")
    tape = imported([tmp_path / "p1.csv", tmp_path / "p2.csv"], layout, config_path=tmp_path / "config.json")
    routing = tape.read("routing")
    assert routing.filter(request_id=1, layer=2)["expert_ids"].to_list() == [[5, 6], [6, 7], [7, 0], [0, 1]]
    assert routing.filter(request_id=0, layer=1)["position"].to_list() == [0, 1, 2, 3]
    assert (tape.geometry.hidden, tape.geometry.moe_layers, tape.manifest.model_id) == (64, (1, 2), "qwen3_moe")


def test_a_file_per_layer(tmp_path: Path, imported: Callable[..., Tape]) -> None:
    """The form of FLAME-MoE-Traces: row i is the same token in every layer's file."""
    paths = []
    for layer in LAYERS:
        paths.append(tmp_path / f"layer{layer}.parquet")
        pl.DataFrame({"indices": [[layer, t + 3] for t in range(4)], "scores": [[0.75, 0.25]] * 4}).write_parquet(paths[-1])
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    layout = Layout(Columns(experts="indices", weights="scores", phase="prefill"), files="layers")
    routing = imported(paths, layout, config_path=tmp_path / "config.json").read("routing")
    assert routing["layer"].to_list() == [1] * 4 + [2] * 4
    assert routing["expert_ids"].to_list() == [[1, t] for t in range(3, 7)] + [[2, t] for t in range(3, 7)]


def test_rows_of_a_layer_and_an_expert_alone(tmp_path: Path, imported: Callable[..., Tape]) -> None:
    """The form of llama.cpp's moe-trace: k rows are one token's, nothing else is said."""
    path = tmp_path / "trace.csv"
    path.write_text("layer,expert\n0,1\n0,2\n1,3\n1,4\n0,5\n0,6\n1,7\n1,0\n")
    tape = imported(path, Layout(Columns(experts="expert", phase="decode"), top_k=2), n_experts=8, expert_bytes=1000)
    assert tape.read("routing")["expert_ids"].to_list() == [[1, 2], [3, 4], [5, 6], [7, 0]]
    assert tape.geometry.recorded_expert_bytes == (1000, 1000)


GOOD = "layer,expert_ids,position\n0,1 2,0\n0,3 4,1\n"
BAD: dict[str, tuple[str, dict[str, Any], str]] = {
    "no such column": (GOOD, {"columns": Columns(experts="ids", phase="prefill")}, "no column 'ids'; it has layer, expert_ids"),
    "no phase": (GOOD, {"columns": Columns()}, "no column 'phase'"),
    "uneven": (GOOD + "0,5,2\n", {}, "row 3: ids is [5], not 2 experts"),
    "text as an expert": (GOOD + "0,one two,2\n", {}, "row 3: expert_ids is 'one two'"),
    "a negative expert": (GOOD + "0,-1 2,2\n", {}, "row 3: expert_ids is '-1 2'"),
    "a fraction as a layer": (GOOD + "0.5,1 2,2\n", {}, "row 3: layer is '0.5'"),
    "an expert past any model": (GOOD + "0,1 99999,2\n", {}, "row 3: expert_ids is '99999'"),
    "an expert past this model": (GOOD + "0,1 8,2\n", {}, "position 2, layer 0: expert 8 is outside 0..7"),
    "a position past any context": (GOOD + "0,1 2,4e9\n", {}, "row 3: position is '4e9'"),
    "a row twice": (GOOD + "0,1 2,1\n", {}, "position 1, layer 0: this row was already given"),
    "an id twice": (GOOD + "0,2 2,2\n", {}, "expert 2 appears twice"),
    "one per row, k not said": ("layer,expert_ids\n0,1\n0,2\n", {}, "--top-k says how many rows are one token"),
    "one per row, cut off": ("layer,expert_ids\n0,1\n0,2\n0,3\n", {"top_k": 2}, "each 2 must be one token's"),
    "one per row, two layers": ("layer,expert_ids\n0,1\n1,2\n", {"top_k": 2}, "row 2: another layer within 2 rows"),
    "another top-k": (GOOD, {"top_k": 3}, "row 1: 2 experts, --top-k says 3"),
    "no rows kept": (GOOD, {"where": ("layer", "7")}, "no rows with layer=7"),
    "files of what": (GOOD, {"files": "prompts"}, "files is 'prompts'; give one of parts, requests, layers"),
    "a column and a file": (GOOD, {"files": "layers", "columns": Columns(layer="layer", phase="prefill")}, "cannot be named"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_tables_are_refused_in_one_line(name: str, tmp_path: Path, imported: Callable[..., Tape]) -> None:
    text, changes, message = BAD[name]
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with importer_cases.refused(Store(str(tmp_path / "store")), message):
        imported(path, Layout(**{"columns": Columns(phase="prefill"), **changes}))


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
        (["--config", "c.json"], "give either the model's config.json or"),
        ([], "row 1: ids is None"),
        (["--where", "type=route", "--max-bytes", "99"], "more than 99 bytes once read"),
    ):
        with pytest.raises(SystemExit) as done:
            main([*asked, *options])
        assert done.value.code == 2
        assert message in capsys.readouterr().err
