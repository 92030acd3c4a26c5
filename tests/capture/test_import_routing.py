"""Any table of routing by its columns: the public formats we know, one file or many, and what is refused."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import importer_cases
import numpy as np
import polars as pl
import pytest

from tokentape.capture.importers.routing_columns import PRESETS, Columns, Layout
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


def parquet(frame: pl.DataFrame) -> bytes:
    stream = io.BytesIO()
    frame.write_parquet(stream)
    return stream.getvalue()


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


# Per preset: the files as its source defines them, the rows (request, position, layer) -> ids that they say, and tokens by pass.
# MoE layers 1 and 2 of three, 8 experts, top 2.
LAB = (
    '{"record_type": "metadata", "format": "moe-cache-lab.routing-jsonl", "format_version": 1, "model_id": "m", "num_experts": 8}'
)
CHOSEN = '{{"record_type": "routing_selection", "phase": "{}", "token_position": {}, "layer": {}, "selected_experts": {}{}}}'
STEP = '{{"step": {}, "stage": "pre_dispatch", "block": "{}", "layer": {}, "rank": 0, "num_tokens": 2, "top_indices": {}}}'
BEYOND = "Layer ID,Batch Number,Token,Activated Expert IDs\n"
LOG = '{{"type": "route", "req_id": "{}", "token_idx": {}, "layer": {}, "topk_ids": {}, "topk_weights": [0.75, 0.25]}}'
TWO_RUNS = {(0, 0, 1): [1, 2], (0, 1, 1): [1, 3], (0, 1, 2): [3, 4], (0, 2, 1): [5, 6], (0, 2, 2): [7, 0], (1, 0, 1): [2, 1]}
PRESET_CASES: dict[str, tuple[list[str | bytes], dict[tuple[int, int, int], list[int]], list[int]]] = {
    # Two tokens of a prompt, of which the last layer sees the last, and a decoded one; then a run of one token.
    "moe-trace": (
        ["1,1\n1,2\n1,1\n1,3\n2,3\n2,4\n1,5\n1,6\n2,7\n2,0\n", "1,2\n1,1\n"],
        TWO_RUNS,
        [2, 1, 1],
    ),
    "moe-trace-positions": (["-2,1,1,2\n-1,1,1,3\n-1,2,3,4\n0,1,5,6\n0,2,7,0\n", "0,1,2,1\n"], TWO_RUNS, [2, 1, 1]),
    "moe-trace-ranks": (
        [
            "phase,token,layer,rank,expert\n"
            + "".join(
                f"{phase},{token},{layer},{rank},{e}\n"
                for phase, token, layer, ids in (
                    *(("prefill", 0, 1, (1, 2)), ("prefill", 1, 1, (1, 3)), ("prefill", 1, 2, (3, 4))),
                    *(("decode", 2, 1, (5, 6)), ("decode", 2, 2, (7, 0))),
                )
                for rank, e in enumerate(ids)
            )
        ],
        {key: ids for key, ids in TWO_RUNS.items() if key[0] == 0},
        [2, 1],
    ),
    "moe-cache-lab": (
        [
            "\n".join((LAB, CHOSEN.format("prompt", 0, 1, "[1, 2]", ""), CHOSEN.format("prompt", 1, 1, "[1, 3]", ""), ""))
            + CHOSEN.format("generated", 2, 1, "[5, 6]", ', "token_id": 9, "selected_probabilities": []')
        ],
        {(0, 0, 1): [1, 2], (0, 1, 1): [1, 3], (0, 2, 1): [5, 6]},
        [2, 1],
    ),
    "megatron": (
        [
            "\n".join(
                STEP.format(*row)
                for row in (
                    *((0, "decoder", 1, "[[1, 2], [3, 4]]"), (0, "decoder", 2, "[[5, 6], [7, 0]]")),
                    *((0, "mtp", 1, "[[1, 2], [3, 4]]"), (1, "decoder", 1, "[[2, 3]]"), (1, "decoder", 2, "[[0, 1]]")),
                )
            )
        ],
        {(0, 0, 1): [1, 2], (0, 1, 1): [3, 4], (0, 0, 2): [5, 6], (0, 1, 2): [7, 0], (1, 0, 1): [2, 3], (1, 0, 2): [0, 1]},
        [2, 1],
    ),
    "flame-moe": (
        [
            parquet(pl.DataFrame({"indices": [[layer, 3], [layer, 4]], "scores": [[0.25, 0.75], [0.75, 0.25]]}))
            for layer in LAYERS
        ],
        {(0, 0, 1): [3, 1], (0, 1, 1): [1, 4], (0, 0, 2): [3, 2], (0, 1, 2): [2, 4]},
        [2],
    ),
    "expert-selection-trace": (
        [
            '[{"0": null, "1": [[1, 2], [3, 4]], "2": [[5, 6], [7, 0]]}, {"0": null, "1": [[2, 3]], "2": [[0, 1]]}]',
            '[{"1": [[6, 7]]}]',
        ],
        {
            (0, 0, 1): [1, 2],
            (0, 1, 1): [3, 4],
            (0, 0, 2): [5, 6],
            (0, 1, 2): [7, 0],
            (0, 2, 1): [2, 3],
            (0, 2, 2): [0, 1],
            (1, 0, 1): [6, 7],
        },
        [2, 1, 1],
    ),
    "moe-beyond": (
        [
            BEYOND + '1,0,"a, b","[1, 2]"\n1,0,c,"[3, 4]"\n2,0,"a, b","[5, 6]"\n2,0,c,"[7, 0]"\n',
            BEYOND + '1,0,d,"[2, 3]"\n',
        ],
        {(0, 0, 1): [1, 2], (0, 1, 1): [3, 4], (0, 0, 2): [5, 6], (0, 1, 2): [7, 0], (1, 0, 1): [2, 3]},
        [2, 1],
    ),
    "vllm-log": (
        [
            '{"type": "meta", "top_k": 2}\n'
            + "\n".join(LOG.format(*row) for row in (("a", 4, 1, "[1, 2]"), ("b", 0, 1, "[3, 4]")))
        ],
        {(0, 4, 1): [1, 2], (1, 0, 1): [3, 4]},
        [1, 1],
    ),
}


@pytest.mark.parametrize("preset", PRESETS)
def test_a_published_format_by_its_preset(preset: str, tmp_path: Path, imported: Callable[..., Tape]) -> None:
    contents, rows, passes = PRESET_CASES[preset]
    paths = []
    for number, content in enumerate(contents):
        paths.append(tmp_path / f"{number}.of.{PRESETS[preset]['form']}")
        paths[-1].write_bytes(content.encode() if isinstance(content, str) else content)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    tape = imported(paths, Layout.of(preset, Columns()), config_path=tmp_path / "config.json")
    found = tape.read("routing").to_dicts()
    assert {(r["request_id"], r["position"], r["layer"]): r["expert_ids"] for r in found} == rows
    assert tape.read("passes")["n_tokens"].to_list() == passes
    assert (tape.geometry.hidden, tape.geometry.moe_layers, tape.manifest.model_id) == (64, (1, 2), "qwen3_moe")
    assert tape.manifest.settings["preset"] == preset
    n_tokens = len({key[:2] for key in rows})
    assert ("missing_rows" in tape.manifest.flags) == (len(rows) < 2 * n_tokens)


def test_what_a_preset_reads_beside_its_rows(tmp_path: Path, imported: Callable[..., Tape]) -> None:
    lab = tmp_path / "lab.jsonl"
    lab.write_text(LAB + "\n" + CHOSEN.format("generated", 0, 1, "[1, 2]", ', "selected_probabilities": [0.75, 0.25]'))
    tape = imported(lab, Layout.of("moe-cache-lab", Columns()), config_path=None)
    assert (tape.geometry.n_experts, tape.manifest.model_id) == (8, "m")
    assert tape.read("routing")["gate_weights"].to_list() == [[0.75, 0.25]]
    misread = tmp_path / "misread.csv"  # eight experts in a token's order of rank, read as the choices of four tokens
    misread.write_text("".join(f"{layer},{e}\n" for layer in (0, 1) for e in (3, 1, 7, 0, 2, 6, 5, 4)))
    tape = imported(misread, Layout.of("moe-trace", Columns(), top_k=2))
    assert tape.manifest.flags["prompt_misread_frac"] == 1
    changed = imported(misread, Layout.of("moe-trace", Columns(phase="decode"), top_k=2, order="requests"))
    assert changed.read("passes")["kind"].to_list() == ["decode"] * 4
    shipped = imported(misread, Layout.of("moe-trace", Columns(), top_k=2), config_path=config_path("OLMoE-1B-7B"))
    assert (shipped.manifest.model_id, shipped.geometry.n_experts) == ("olmoe-1b-7b", 64)


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
    "one per row, k not said": ("layer,expert_ids\n0,1\n0,2\n", {}, "--model or --top-k says how many are one token's"),
    "a header where none is": (
        "layer,expert\n0,1\n",
        {"preset": "moe-trace", "top_k": 1},
        "row 1: expert is 'expert', not expert ids",
    ),
    "too few columns": ("0\n1\n", {"preset": "moe-trace-positions"}, "1 columns, pos, layer, experts are expected"),
    "cut off": ("0,1,2,3\n1,1,2\n", {"preset": "moe-trace-positions"}, "row 2: experts is None"),
    "no list of passes": ("{}", {"preset": "expert-selection-trace"}, "no rows"),
    "a pass of numbers": ("[3]", {"preset": "expert-selection-trace"}, "step 1 is 3, not an object of layers"),
    "a layer by another name": ('[{"a": [[1, 2]]}]', {"preset": "expert-selection-trace"}, "row 1: layer is None"),
    "a pass without experts": ('[{"1": [[], [1, 2]]}]', {"preset": "expert-selection-trace"}, "row 1: expert_ids is []"),
    "another record": ('{"record_type": "x"}', {"preset": "moe-cache-lab"}, "no rows with record_type=routing_selection"),
    "encoders": (
        CHOSEN.format("source", 0, 1, "[1, 2]", ""),
        {"preset": "moe-cache-lab"},
        "phase is 'source', not prefill or decode",
    ),
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
        columns = Columns() if "preset" in changes else Columns(phase="prefill")
        imported(path, Layout.of(**{"preset": None, "columns": columns, **changes}))


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
