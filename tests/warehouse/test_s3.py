"""A store on S3 (a local server): two writers of a tape, credentials that stay where they are, and a server that is not there."""

import errno
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from small_store import TRACE

from bench.object_store import KEY, SECRET, s3_server
from tokentape.flows.cli import main
from tokentape.warehouse.tape import Store
from tokentape.warehouse.transfer import transfer

TINY = Path(__file__).resolve().parents[1] / "data" / "tiny.route.csv"


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """An empty one of a server of its own, and the environment to reach it."""
    s3fs = pytest.importorskip("s3fs")
    pytest.importorskip("moto")
    with pytest.MonkeyPatch.context() as patch, s3_server() as environment:
        for name, value in environment.items():
            patch.setenv(name, value)
        s3fs.S3FileSystem.clear_instance_cache()
        s3fs.S3FileSystem().mkdir("tapes")
        yield "s3://tapes"
    s3fs.S3FileSystem.clear_instance_cache()


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return int(ended.value.code or 0)


@pytest.mark.parametrize("kind", ["folder", "S3"])
def test_of_two_writers_of_a_shard_the_first_stands(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    store = Store(str(tmp_path) if kind == "folder" else f"{request.getfixturevalue('bucket')}/two")
    path, rows = store.trace_path("t", "tokens", "part-00000.parquet"), pa.table({"x": [1, 2]})
    store.write_shard(path, rows)
    store.write_shard(path, rows)  # the same rows are the same bytes
    before = store.fs.cat_file(path)
    with pytest.raises(FileExistsError, match=r"there already with other rows: .*`tokentape rm` it") as caught:
        store.write_shard(path, rows.slice(1))
    assert (caught.value.errno, caught.value.filename) == (errno.EEXIST, path)
    assert store.fs.cat_file(path) == before
    assert store.fs.find(store.root) == [path], "nothing stays beside it"


def test_a_shard_that_was_stopped_makes_room_and_a_pushed_tape_is_whole(bucket: str, small: Store) -> None:
    store = Store(f"{bucket}/stopped")
    for table, shard in (("tokens", 0), ("requests", 0), ("tokens", 1), ("requests", 2)):
        store.write_bytes(store.trace_path("t", table, f"part-0000{shard}.parquet"), b"x")
    store.writer("t").remove_incomplete(("requests", "tokens"))
    left = [path.split("trace_id=t/")[1] for path in store.fs.find(store.root)]
    assert left == ["requests/part-00000.parquet", "tokens/part-00000.parquet"]
    there = Store(f"{bucket}/pushed")
    assert transfer(small, TRACE, there)
    assert not transfer(small, TRACE, there)
    assert there.open(TRACE).read("routing").equals(small.open(TRACE).read("routing"))
    assert run("check", there.uri) == 0


def test_credentials_stay_in_the_environment(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOKENTAPE_STORE", f"{bucket}/mine")
    for words in (("import", "bigmoe", str(TINY)), ("ls",), ("check",)):
        assert run(*words, "-v") == 0
    store, shown = Store(), capfd.readouterr()
    kept = [store.fs.cat_file(path) for path in store.fs.find(store.root)]
    kept.append((shown.out + shown.err).encode())
    assert len(kept) == 4 + 1 + 1 + 1, "tables, manifest, card and what was shown"
    assert not [data for data in kept if SECRET.encode() in data or KEY.encode() in data]


@pytest.mark.parametrize("uri", ["s3://KEY:hidden@tapes/a", "sftp://me:hidden@host/tapes"])
def test_a_password_in_a_uri_is_refused_and_not_shown(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("ls", "--store", uri) == 2
    said = capsys.readouterr().err
    assert said.startswith("tokentape: a URI is kept beside results: give name and password by its environment")
    assert "hidden" not in said


@pytest.mark.parametrize(
    ("missing", "said"), [("AWS_SECRET_ACCESS_KEY", "credentials"), ("AWS_ENDPOINT_URL", "Could not connect to the endpoint URL")]
)
def test_a_server_that_cannot_be_entered_is_one_line(
    bucket: str, missing: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    s3fs = pytest.importorskip("s3fs")
    s3fs.S3FileSystem.clear_instance_cache()
    with monkeypatch.context() as patch:
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.setenv("AWS_MAX_ATTEMPTS", "1")
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", "nowhere")
        patch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        if missing != "AWS_ENDPOINT_URL":
            patch.delenv(missing)
        assert run("ls", "--store", f"{bucket}/mine") == 2
    s3fs.S3FileSystem.clear_instance_cache()
    line = capsys.readouterr().err
    assert said in line
    assert line.endswith("S3 is found and entered by AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or ~/.aws\n")
    assert len(line.splitlines()) == 1
