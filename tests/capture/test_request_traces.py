"""Importers of arrivals and lengths: small files of each form, the published ones where they lie, and what is refused."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from refusing import refuses

from tokentape.capture.importers.limits import BadImport
from tokentape.capture.importers.request_traces import FORMS, Form, import_requests
from tokentape.flows.commands import imports
from tokentape.flows.serving.setup import _own
from tokentape.replay.serving.workload import cached_tokens, from_table, sharing
from tokentape.warehouse.tape import Store

PUBLISHED = Path(__file__).resolve().parents[3] / "shared" / "data" / "arrival"
AZURE_HEAD = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
needs_published = pytest.mark.skipif(not PUBLISHED.exists(), reason="the published traces are not beside this checkout")


def written(tmp_path: Path, name: str, text: str) -> Path:
    path = tmp_path / name
    path.write_text(text, newline="")
    return path


def test_azure(tmp_path: Path, store: Store) -> None:
    rows = ["2023-11-16 23:59:59.9799600,4808,10", "2023-11-17 00:00:00.2299600,7,8", "2023-11-17 00:00:00.4799600,3,0"]
    path = written(tmp_path, "azure.csv", AZURE_HEAD + "\r\n".join(rows) + "\r\n")
    tape = store.open(import_requests(path, store, "azure"))
    table = tape.read("requests")
    assert table["arrival_s"].to_list() == [0.0, 0.25]
    assert table["n_prompt_tokens"].to_list() == [4808, 7]
    assert tape.manifest.flags == {"empty_requests": {"left_out": 1, "rows": 3}}
    assert tape.manifest.tables == ("requests",)
    assert import_requests(path, store, "azure") == tape.trace_id, "importing it again changes nothing"


def test_azure_with_a_byte_order_mark_quotes_empty_lines_and_a_time_zone(tmp_path: Path, store: Store) -> None:
    head = ",".join(f'"{name}"' for name in AZURE_HEAD.strip().split(","))
    path = written(tmp_path, "azure.csv", f'\ufeff{head}\r\n"2023-11-16 23:59:59","4808","10"\r\n\r\n\r\n')
    assert imports.published_form(path) == "azure"
    assert store.open(import_requests(path, store, "azure")).read("requests")["n_prompt_tokens"].to_list() == [4808]
    moments = [
        "2024-05-10 00:00:00.009930+00:00",
        "2024-05-10 00:00:01+00:00",
        "2024-05-10 02:00:02.5+02:00",
        "2024-05-10T00:00:03Z",
        "2024-05-09 19:00:04,25-05",
    ]
    path = written(tmp_path, "week.csv", AZURE_HEAD + "".join(f'"{moment}",5,6\n' for moment in moments))
    arrivals = store.open(import_requests(path, store, "azure")).read("requests")["arrival_s"].to_list()
    assert arrivals == pytest.approx([0, 0.99007, 2.49007, 2.99007, 4.24007], abs=1e-9)


def test_any_csv_by_its_columns_each_one_thing(tmp_path: Path, store: Store) -> None:
    path = written(tmp_path, "mine.csv", "out,when,in\n3,12.5,30\n4,10,40\n")
    table = store.open(import_requests(path, store, Form(("when", "in", "out")), dataset="mine")).read("requests")
    assert table["arrival_s"].to_list() == [0.0, 2.5]
    assert table["n_output_tokens"].to_list() == [4, 3]
    assert table["dataset"].to_list() == ["mine"] * 2
    path = written(tmp_path, "mine.csv", "at,out\n0,5\n")
    with pytest.raises(ValueError, match=r"mine\.csv: column out cannot be two of arrival, prompt and output"):
        import_requests(path, store, Form(("at", "out", "out")))


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz"])
def test_mooncake_with_prefixes(tmp_path: Path, store: Store, suffix: str) -> None:
    rows = [
        {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]},
        {"timestamp": 27000, "input_length": 1000, "output_length": 6, "hash_ids": [0, 2]},
    ]
    text = "\n".join(map(json.dumps, rows)) + "\n"
    path = tmp_path / f"mooncake.{suffix}"
    path.write_bytes(gzip.compress(text.encode()) if suffix.endswith("gz") else text.encode())
    tape = store.open(import_requests(path, store, "mooncake"))
    table = tape.read("requests")
    assert table["arrival_s"].to_list() == [0.0, 27.0]
    assert table["prefix_blocks"].to_list() == [[0, 1], [0, 2]]
    assert cached_tokens(sharing(from_table(table, ""), table["prefix_blocks"].to_list(), {})).tolist() == [0, 512]
    assert tape.manifest.settings == {"importer": "mooncake", "prefix_block_tokens": 512, "is_stepped": False}


# As the sources of requests.toml define them: three requests, of which one has no answer, or two; seconds, prompts, outputs.
PUBLISHED_FORMS = json.loads((Path(__file__).parent / "published_forms.json").read_text())


@pytest.mark.parametrize("form", PUBLISHED_FORMS)
def test_published_forms_are_known_by_their_columns(
    form: str, tmp_path: Path, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    text, columns = PUBLISHED_FORMS[form]
    name = {"jsonl": "trace.json", "csv": "trace.json.csv"}[FORMS[form].form]  # JSON lines are also called .json
    path = written(tmp_path, name, text)
    imports.import_requests([path], store=store)
    table = store.open(capsys.readouterr().out.strip()).read("requests")
    assert [table[name].to_list() for name in ("arrival_s", "n_prompt_tokens", "n_output_tokens")] == columns
    assert table["dataset"].unique().to_list() == [form]


@pytest.mark.parametrize(("form", "arrivals"), [("burstgpt", [0, 0.5, 1, 2]), ("servegen", [0, 0, 1, 2])])
def test_equal_stamps_are_a_burst_unless_they_come_in_steps(
    form: str, arrivals: list[float], tmp_path: Path, store: Store
) -> None:
    head = ",".join(FORMS[form].columns) + "\n"
    path = written(tmp_path, "trace.csv", head + "".join(f"{at},3,4\n" for at in (0, 0, 1, 2)))
    assert _own(store.root, import_requests(path, store, form), False).arrival_s.tolist() == arrivals


@pytest.mark.parametrize("name", ["timestamp", "arrival_time", "delay"])
def test_requests_with_times_are_not_all_there_at_once(name: str, tmp_path: Path, store: Store) -> None:
    lines = "".join(json.dumps({name: at, "input_length": 9, "output_length": 9}) + "\n" for at in (0, 5000))
    path = written(tmp_path, "trace.jsonl", lines)
    with pytest.raises(BadImport, match="not an object of timestamp, input_length, output_length, hash_ids"):
        imports.import_requests([path], store=store)
    with pytest.raises(BadImport, match="not an object of input_length, output_length, duration, no timestamp or arrival_time"):
        import_requests(path, store, "servegen-offline")


def test_a_clock_of_another_unit_is_no_seconds(tmp_path: Path, store: Store) -> None:
    for digits in (3, 6, 9):  # two requests of the same minute
        rows = "".join(f"{at * 10**digits},9,9\n" for at in (1_719_990_000, 1_719_990_060))
        path = written(tmp_path, "mine.csv", "when,in,out\n" + rows)
        refuses("1.72e.1. s|6e.10 s apart", import_requests, path, store, Form(("when", "in", "out")), error=BadImport)
        told = store.open(import_requests(path, store, Form(("when", "in", "out"), unit_s=10.0**-digits)))
        assert told.read("requests")["arrival_s"].to_list() == pytest.approx([0, 60])


def test_several_files_are_one_trace(tmp_path: Path, store: Store) -> None:
    head = "Timestamp,Request tokens,Response tokens\n"
    paths = [written(tmp_path, "b.csv", head + "100,3,4\n"), written(tmp_path, "a.csv", head + "90,5,6\n101,7,x\n")]
    refuses(r"a\.csv: row 2: Response tokens is 'x'", import_requests, paths, store, "burstgpt", error=BadImport)
    written(tmp_path, "a.csv", head + "90,5,6\n")
    table = store.open(import_requests(paths, store, "burstgpt")).read("requests")
    assert (table["arrival_s"].to_list(), table["n_prompt_tokens"].to_list()) == ([0, 10], [5, 3])


@needs_published
def test_published_traces_have_their_published_statistics(store: Store) -> None:
    azure = from_table(
        store.open(import_requests(PUBLISHED / "AzureLLMInferenceTrace_code.csv", store, "azure")).read("requests"), "azure"
    )
    assert (len(azure), round(azure.arrival_s[-1])) == (8819, 3436)
    assert [azure.n_prompt_tokens.mean(), np.median(azure.n_prompt_tokens)] == pytest.approx([2048, 1469], abs=0.5)
    tape = store.open(import_requests(PUBLISHED / "mooncake_conversation_trace.jsonl.gz", store, "mooncake"))
    table = tape.read("requests")
    mooncake = from_table(table, "mooncake")
    assert (len(mooncake), round(mooncake.arrival_s[-1]), np.unique(mooncake.arrival_s).size) == (12031, 3537, 1180)
    assert np.diff(_own(store.root, tape.trace_id, False).arrival_s).min() > 0
    cached = cached_tokens(sharing(mooncake, table["prefix_blocks"].to_list(), {}))
    assert 0.3 < cached.sum() / mooncake.n_prompt_tokens.sum() < 0.4  # of all blocks, 0.366 were seen before
