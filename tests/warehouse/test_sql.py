"""Questions: the views' numbers, every named query, forms of an answer, and that nothing can be written."""

import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from refusing import refuses
from small_store import result_tables

from tokentape.warehouse import sql
from tokentape.warehouse.load import database_path, load
from tokentape.warehouse.results import batch_path, write_replays, write_rows
from tokentape.warehouse.sql import BadQuery, BadWarehouse, connect, named, query, render
from tokentape.warehouse.tape import Store


@pytest.fixture(scope="module")
def database(small_template: Store, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Read only: tests that change something load their own."""
    return load(small_template, tmp_path_factory.mktemp("small") / "warehouse.duckdb").database


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("empty")
    return load(Store(str(folder)), folder / "warehouse.duckdb").database


def test_views_of_policies_and_the_best_of_them(database: Path) -> None:
    """Metrics as columns, the gap to the bound, methods that none beats, and the fastest."""
    row = query(database, "from policy_summary where replay_id = 'r3'").to_dicts()[0]
    assert (row["policy"], row["hit_frac"], row["decode_step_s"], row["decode_energy_j_per_token"]) == ("lfu", 0.4, 2.0, 3.0)
    assert (row["n_lookups"], row["prefill_s"], row["model_id"]) == (10, None, "tiny")
    rows = query(
        database, "select policy, lru_hit_frac, belady_hit_frac, gap_captured_frac from baselines where capacity_experts = 2"
    )
    gaps = {policy: (lru, belady, round(gap, 9)) for policy, lru, belady, gap in rows.iter_rows()}
    assert gaps == {"lru": (0.2, 0.6, 0.0), "lfu": (0.2, 0.6, 0.5), "random": (0.2, 0.6, -0.25), "belady": (0.2, 0.6, 1.0)}
    rows = query(database, "select capacity_experts, policy from pareto order by all").rows()
    assert rows == [(1.0, "lru"), (2.0, "lfu"), (2.0, "lru")]  # random loses to both; bounds take no part
    answer = query(database, named()["best_policy"].sql)
    assert answer.select("capacity_frac", "policy", "decode_step_ms").rows() == [(0.25, "lru", 4000.0), (0.5, "lfu", 2000.0)]


def test_means_are_added_up_in_the_order_of_seeds(small: Store) -> None:
    steps_s = first, second, third = (0.1, 0.2, 0.3)  # from the other end they come to another last digit
    for seed, step_s in enumerate(steps_s):
        key = f"f{len(steps_s) - seed}"  # results lie in the order of their ids
        write_replays(small, result_tables(key, "fifo", 2, 0.1, step_s, step_s, seed=seed))
    database = load(small, database_path(small)).database
    assert query(database, "select decode_step_s from methods where policy = 'fifo'").item() == (first + second + third) / 3


def test_pareto_and_best_policy_rank_means_over_seeds(small: Store) -> None:
    for seed, step_s in ((1, 0.5), (2, 8.0)):  # one lucky draw, faster than LFU; with seed 0 the mean is 4 s
        write_replays(small, result_tables(f"s{seed}", "random", 2, 0.1, step_s, step_s, seed=seed))
    write_replays(small, result_tables("s3", "random", 2, 0.1, 0.5, 0.5, seed=1, study="again"))  # counts once
    database = load(small, database_path(small)).database
    assert query(database, "select n_seeds, decode_step_s from methods where policy = 'random'").rows() == [(3, 4.0)]
    assert query(database, "select policy from pareto where capacity_experts = 2 order by 1").rows() == [("lfu",), ("lru",)]
    best = query(database, named()["best_policy"].sql)
    assert best.select("policy", "n_seeds").rows() == [("lru", 1), ("lfu", 1)]


def test_a_replay_counts_as_its_newest_run_says(small: Store) -> None:
    for n, study in enumerate(("zz", "again", "adhoc")):
        write_replays(small, result_tables(f"f{9 - n}", "fifo", 2, 0.1 + n / 10, 1.0, 1.0, study=study))
        os.utime(batch_path(small, "runs", f"replays-f{9 - n}"), (2e9 + n, 2e9 + n))
        asked = "select d.study, is_studied, hit_frac from draws d join methods using (policy) where policy = 'fifo'"
        assert query(load(small, database_path(small)).database, asked).rows() == [(study, True, 0.1 + n / 10)]


OTHERS = {"lookup": "serial", "recency": "hits-first", "prefill": "token-major", "start": "cold", "overflow": "keep"}
OTHERS |= {"fetching": "overlapped", "expert_format": "int8", "scope": "per-layer"}


def test_answers_do_not_mix_experiments(small: Store, database: Path) -> None:
    before = {name: query(database, named()[name].sql).rows() for name in ("hit_curve", "energy", "gap_to_belady", "best_policy")}
    for policy in ("lru", "lfu", "belady"):
        for column, value in OTHERS.items():
            key = f"{policy}-{column}"
            write_replays(small, result_tables(key, policy, 2, 0.9, 9.0, 9.0, study="adhoc", **{column: value}))
    curve = result_tables("curve", "lru-all-capacities", 4, 0.0, 0.0, 0.0, hardware="", hardware_sha256="")
    empty = pa.array(["n_lookups"] * 4)
    write_replays(small, curve | {"metrics": curve["metrics"].set_column(1, "metric", empty).slice(3)})
    loaded = load(small, database_path(small)).database
    for name, rows in before.items():
        after = query(loaded, named()[name].sql)
        assert set(rows) <= set(after.rows()), name
        of_experiment = {"scope", "lookup", "recency", "prefill", "start", "overflow", "fetching", "expert_format"}
        assert of_experiment <= set(after.columns), name
        assert "lru-all-capacities" not in after["policy"], name


def test_answers_do_not_mix_cost_profiles(small: Store, database: Path) -> None:
    asked = ("methods", "pareto", "baselines", "best_policy", "energy")
    before = {name: query(database, f"from {name}" if name not in named() else named()[name].sql).rows() for name in asked}
    for policy in ("lru", "lfu", "belady", "sieve"):
        write_replays(small, result_tables(policy, policy, 2, 0.9, 1e-9, 1e-9, study="adhoc", profile="kelle"))
    loaded = load(small, database_path(small)).database
    for name, rows in before.items():
        after = query(loaded, f"from {name}" if name not in named() else named()[name].sql)
        assert set(after.filter(pl.col("profile").is_null()).rows()) == set(rows), name
        assert set(after["profile"]) == {None, "kelle"}, name


def test_paper_vs_replay(small: Store) -> None:
    database = load(small, database_path(small)).database
    assert query(database, "from paper_vs_replay").is_empty()
    claims = query(database, "select claim_id, value from claims where value > 1 limit 1").row(0)
    withheld = query(database, "select claim_id from claims where value is null limit 1").item()
    answer = {"study": "made-up", "mode": "paper", "low": 6.0, "high": None, "how": "made up"}
    write_rows(
        small,
        "answers",
        [{"claim_id": claims[0], "value": claims[1] * 1.1, **answer}, {"claim_id": withheld, "value": 7.0, **answer}],
    )
    answers = query(load(small, database).database, "from paper_vs_replay order by paper nulls last")
    head = ["claim_id", "location", "metric", "setting", "role", "unit", "paper", "replay"]
    head += ["band_low", "band_high", "rel_err", "mode"]
    assert answers.columns[: len(head)] == head
    assert answers["claim_id"].to_list() == [claims[0], withheld]
    assert answers["rel_err"][0] == pytest.approx(0.1)
    assert answers.row(1, named=True)["replay"] == 7.0
    assert answers["rel_err"][1] is None


@pytest.mark.parametrize("name", sorted(named()))
def test_named_queries_run_on_an_empty_and_a_small_warehouse(name: str, database: Path, empty: Path) -> None:
    question = named()[name]
    assert question.question.endswith("?")
    assert question.sql.startswith(f"-- {question.question}\n")
    assert query(empty, question.sql).is_empty()
    answer = query(database, question.sql)
    of_studies = ("claim_errors", "paper_vs_replay", "kelle_gains")  # which the fixture has not
    assert answer.is_empty() == (name in of_studies)
    assert answer.columns == query(empty, question.sql).columns


STATEMENTS = json.loads((Path(__file__).parent / "statements.json").read_text())
TINY = Path(__file__).resolve().parents[1] / "data" / "tiny.route.csv"
ELSEWHERE = [*(f"from {of}" for of in (f"read_csv('{TINY}')", f"'{TINY}'", f"read_text('{TINY}')")), "from FRAME"]


def test_the_settings_of_a_connection_cannot_be_unlocked(database: Path) -> None:
    """Whatever statement might slip through: what keeps other files out stays as it is."""
    with closing(connect(database)) as connection:
        for statement in ("set threads = 1", "set lock_configuration = false", "reset autoload_known_extensions"):
            refuses("the configuration has been locked", connection.execute, statement, error=duckdb.InvalidInputException)


@pytest.mark.parametrize("statement", [*STATEMENTS["refused"], *ELSEWHERE])
def test_only_one_question_is_accepted_and_of_no_other_file(statement: str, database: Path) -> None:
    if statement.startswith("pragma") and duckdb.__version__ < "2":
        pytest.skip("a question that DuckDB 1 answers from a table function")
    before = database.read_bytes()
    refuses(".", query, database, statement, error=BadQuery)
    assert database.read_bytes() == before


@pytest.mark.parametrize("statement", STATEMENTS["accepted"])
def test_forms_of_a_question(statement: str, database: Path) -> None:
    assert len(query(database, statement))


@pytest.mark.parametrize(
    "expression",
    [
        *("'infinity'::date", "'-infinity'::timestamp", "'infinity'::timestamptz", "'294247-01-10'::timestamp"),
        *("date '5877642-06-25 (BC)'", "['infinity'::date]", "{'a': 'infinity'::timestamp}", "map([1], ['infinity'::date])"),
        *("'a'::blob", "['a'::blob]", "bitstring '101'", "[3::bignum]"),
    ],
)
def test_what_cannot_be_printed_is_refused_in_one_line(expression: str, empty: Path) -> None:
    refuses(r"^column d h(as|olds) .*; ask for d::varchar", query, empty, f"select {expression} as d", error=BadQuery)


def test_sums_and_decimals_come_back_as_numbers(empty: Path, database: Path) -> None:
    answer = query(
        empty, f"select {'9' * 38}::decimal(38, 0) as long, 1.5::decimal(9, 2) as part, sum(7::hugeint) as whole, [1.5] as l"
    )
    assert answer.select("long", "part", "whole").row(0) == (1e38, 1.5, 7)
    assert answer["whole"].dtype == pl.Int64
    within = query(empty, f"select [sum(7::hugeint)] l, {{'a': [1.5], 'b': 2::uhugeint}} s, [{'9' * 38}::decimal(38, 0)] long")
    assert json.loads(within.write_json()) == [{"l": [7], "s": {"a": [1.5], "b": 2}, "long": [1e38]}]
    for format in ("table", "csv", "json"):
        render(answer, format)
    frame = query(database, "select sum(n_lookups) as n, sum(value) as v, 1.5::decimal(10,2) as d from timeline, metrics")
    assert frame.schema == {"n": pl.Int64, "v": pl.Float64, "d": pl.Float64}


def test_errors_are_one_line_with_what_there_is(database: Path, tmp_path: Path) -> None:
    assert "Candidate bindings" in refuses("nope", query, database, "select nope from traces", error=BadQuery)
    refuses("syntax error", query, database, "selec 1", error=BadQuery)
    with pytest.raises(BadQuery, match=r'"run_id".*; .* call it by another name \(as\)$'):
        query(database, "select * from runs r join metrics m on r.run_id = m.run_id")
    refuses("cast the column", query, database, "select interval 1 day as i", error=BadQuery)
    refuses("run `tokentape load` first", query, tmp_path / "none.duckdb", "select 1", error=FileNotFoundError)
    junk = tmp_path / "junk.duckdb"
    junk.write_bytes(b"hello" * 1000)
    refuses("not a valid DuckDB database file", query, junk, "select 1", error=BadWarehouse)


def test_a_damaged_block_is_told_as_such_wherever_it_is_met(database: Path, tmp_path: Path) -> None:
    """As the file is opened, or where a question first reads it."""
    asked, path, whole, said = "select bit_xor(hash(t)) from claims t", tmp_path / "w.duckdb", database.read_bytes(), list[str]()
    for at in range(16_000, len(whole), 1 << 18):  # a bit in every block
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        try:
            assert query(path, asked).equals(query(database, asked))
        except BadWarehouse as error:
            said.append(str(error))
    assert said
    assert all(line.startswith(f"{path}: Corrupt") and line.endswith("run `tokentape load` to build it again") for line in said)


@pytest.fixture
def held(small: Store) -> Iterator[tuple[Path, int]]:
    """A database that another process holds for writing, and that process."""
    database = load(small, database_path(small)).database
    code = f"import duckdb, sys; c = duckdb.connect({str(database)!r}); print('held', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield database, process.pid
        process.communicate()


def test_a_held_database_names_its_holder_and_load_swaps_anyway(
    small: Store, held: tuple[Path, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    database, holder = held
    monkeypatch.setattr(sql, "_WAIT_S", 0.2)
    refuses(f"is held by process {holder}; close that program", query, database, "select 1", error=BadWarehouse)
    load(small, database)  # a new file, renamed over
    assert len(query(database, "from traces")) == 1


# --------------------------------------------------------------------------------------------------------------- render

FRAME = pl.DataFrame(
    {"name": ["a", "[b]"], "x": [1.23456789, None], "n": [1, 2], "ids": [[1, 2], None], "day": ["2026-01-01", None]}
)


def test_a_table_csv_and_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    render(FRAME, "table")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["name", "x", "n", "ids", "day"]
    assert lines[1].split() == ["a", "1.23457", "1", "[1,", "2]", "2026-01-01"]
    assert lines[2].split() == ["[b]", "2"]
    assert lines[3] == "(2 rows)"
    render(FRAME, "csv")
    assert capsys.readouterr().out == 'name,x,n,ids,day\na,1.23456789,1,"[1, 2]",2026-01-01\n[b],,2,,\n'
    render(FRAME, "json")
    assert json.loads(capsys.readouterr().out) == FRAME.to_dicts()
    render(FRAME, "csv", tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text().startswith("name,x,n,ids,day\n")


def test_latex(capsys: pytest.CaptureFixture[str]) -> None:
    render(FRAME.select("name", x="x", n_hits="n").with_columns(name=pl.Series([r"50% \& more", "a^b~{c}<|"])), "latex")
    assert capsys.readouterr().out == (
        "% \\usepackage{booktabs}\n\\begin{tabular}{lrr}\n\\toprule\nname & x & n\\_hits \\\\\n\\midrule\n"
        "50\\% \\textbackslash{}\\& more & 1.23457 & 1 \\\\\n"
        "a\\textasciicircum{}b\\textasciitilde{}\\{c\\}\\textless{}\\textbar{} &  & 2 \\\\\n"
        "\\bottomrule\n\\end{tabular}\n"
    )


def test_parquet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    render(FRAME, "parquet", tmp_path / "out.parquet")
    assert pl.read_parquet(tmp_path / "out.parquet").equals(FRAME)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    refuses("give --out FILE", render, FRAME, "parquet")
    refuses("unknown format 'xls'; known: table, csv, latex, json, parquet", render, FRAME, "xls")


@pytest.mark.parametrize("format", ["csv", "json", "parquet"])
def test_a_file_that_cannot_be_written_is_named_and_the_old_one_stays(
    format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuses(r"nowhere/x", render, FRAME, format, tmp_path / "nowhere" / "x", error=FileNotFoundError)
    out = tmp_path / "x"
    out.write_text("old")
    refuses(r"x/y", render, FRAME, format, out / "y", error=NotADirectoryError)

    def full(path: Path, content: bytes) -> None:
        path.open("wb").write(content[:5])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    refuses(r"No space left on device: '.*/x'", render, FRAME, format, out, error=OSError)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("x", "old")]


def test_a_device_is_written_as_it_is(tmp_path: Path) -> None:
    render(FRAME, "csv", Path(os.devnull))
    assert Path(os.devnull).is_char_device()
    (tmp_path / "link").symlink_to(tmp_path / "file")
    render(FRAME, "csv", tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text().startswith("name,")
