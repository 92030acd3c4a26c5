"""record: prompts to a server that answers as vLLM's and SGLang's documentation says, and what comes of every way it can fail."""

import base64
import io
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import importer_cases
import numpy as np
import pytest
from refusing import full

from tokentape.capture import served
from tokentape.warehouse.tape import Store

L, K, N_OUT = 2, 4, 3  # MoE layers of the config, experts per token, generated tokens
PROMPTS = [f"prompt of {n} words" + " and" * n for n in range(6)]
ACCEPTED = {
    "acceptance_histogram": [0, 2], "num_spec_steps": 2, "num_accepted_draft_tokens": 2, "num_draft_tokens": 2,
    "num_spec_tokens": 1, "per_step_accepted": [1, 1], "per_step_drafted": [1, 1],
}  # fmt: skip


class Server(ThreadingHTTPServer):
    """fails: how many requests are answered by 503 before the first is served; dies_after: how many are served at all; says: what
    it sends in place of an answer."""

    fails, dies_after, has_experts, drafts, model, says = 0, 10**9, True, False, "the-model", b""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[dict[str, Any]] = []
        self.keys: set[str | None] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.send(200, {"data": [{"id": self.server.model}] if self.server.model else []})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.keys.add(self.headers["Authorization"])
        if self.path != "/v1/completions" or body["model"] != self.server.model:
            return self.send(404, {"error": "no such model"})
        if self.server.fails:
            self.server.fails -= 1
            return self.send(503, {"error": "loading"})
        if self.server.says:
            self.wfile.write(self.server.says)
            self.close_connection = True
            return None
        if len(self.server.asked) >= self.server.dies_after:
            return self.send(503, {"error": "out of memory"})
        self.server.asked.append(body)
        n_prompt = len(body["prompt"].split())
        assert body["max_tokens"] == N_OUT
        choice: dict[str, Any] = {"index": 0, "text": "so", "routed_experts": None}  # as vLLM's answers name it
        answer: dict[str, Any] = {"choices": [choice], "usage": {"prompt_tokens": n_prompt, "completion_tokens": N_OUT}}
        if body.get("return_token_ids"):
            choice |= {"prompt_token_ids": list(range(n_prompt)), "token_ids": [7] * N_OUT}
        if self.server.has_experts and "return_token_ids" in body:
            held = io.BytesIO()
            np.save(held, experts(n_prompt))
            choice["routed_experts"] = base64.b64encode(held.getvalue()).decode()
        if self.server.has_experts and body.get("return_routed_experts"):
            rows = np.zeros((n_prompt + N_OUT - 1, 3, K), np.int32)  # all layers, the dense one zeros
            rows[:, 1:] = experts(n_prompt)
            answer["sglext"] = {"routed_experts": base64.b64encode(rows.tobytes()).decode()}
        if self.server.drafts:
            answer["metrics"] = {"speculative_decoding": ACCEPTED}
        return self.send(200, answer)

    def send(self, code: int, body: dict[str, Any]) -> None:
        raw = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *of: Any) -> None:
        """Nothing."""


def experts(n_prompt: int) -> np.ndarray:
    """Of every token but the last: no expert twice in a row, and no two prompts alike."""
    rows = np.arange(n_prompt + N_OUT - 1)[:, None, None]
    return ((rows + np.arange(L)[:, None] + n_prompt + np.arange(K)) % 16).astype(np.int16)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(served, "WAITS_S", (0.0, 0.0, 0.0))
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with Server() as running:
        threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield running
        running.shutdown()


@pytest.fixture
def given(tmp_path: Path, server: Server) -> list[str]:
    """Words of the command but for what the server is."""
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS))
    config = importer_cases.CONFIG | {"architectures": ["Qwen3MoeForCausalLM"], "num_key_value_heads": 2, "head_dim": 16}
    (tmp_path / "config.json").write_text(json.dumps(config))
    return [
        "record", server.url, "--model", str(tmp_path / "config.json"), "--dataset", str(tmp_path / "prompts.jsonl"),
        "--max-new-tokens", str(N_OUT), "--out", str(tmp_path), "--store", str(tmp_path / "tape"),
    ]  # fmt: skip


def run(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str], str]:
    from tokentape.flows.cli import main

    with pytest.raises(SystemExit) as ended:
        main(words)
    said = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, said.out.split(), said.err


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_what_the_server_routed_is_the_tape(
    engine: str,
    given: list[str],
    server: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "a-secret")
    server.fails = 2  # a server that is loading is asked again
    code, (trace_id,), err = run([*given, "--from", engine], capsys)
    assert code == 0, err
    tape = Store(str(tmp_path / "tape")).open(trace_id)
    routing = tape.read("routing").sort("request_id", "position", "layer")
    for n, prompt in enumerate(PROMPTS):
        n_prompt = len(prompt.split())
        rows = routing.filter(request_id=n)
        assert np.array(rows["expert_ids"].to_list()).reshape(-1, L, K).tolist() == experts(n_prompt).tolist()
        assert rows["position"].max() == n_prompt + N_OUT - 2
    assert tape.read("requests")["n_prompt_tokens"].to_list() == [len(prompt.split()) for prompt in PROMPTS]
    assert server.keys == {"Bearer a-secret"}
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and b"a-secret" in path.read_bytes()]
    assert run([*given, "--from", engine], capsys)[1] == [trace_id]
    assert len(server.asked) == len(PROMPTS)  # none of them again
    server.model = "another"
    assert run([*given, "--from", engine], capsys)[0] == 0
    assert len(server.asked) == 2 * len(PROMPTS)  # what one model answered is not another's


def test_a_recording_that_was_stopped_goes_on(
    given: list[str], server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server.dies_after = 4
    code, out, err = run([*given, "--concurrency", "1"], capsys)
    assert (code, out) == (2, [])
    assert 'completions: HTTP 503: {"error": "out of memory"}; start the server, and the same command goes on' in err
    (kept,) = tmp_path.glob("responses-vllm-*.jsonl")
    whole = kept.read_bytes()
    assert whole.count(b"\n") == 4
    kept.write_bytes(whole[:-20])  # and the last line was cut off
    server.dies_after = 10**9
    with kept.open("ab") as held:  # of the same command that still runs, whose last line is half-written
        served._hold(held)
        code, _, err = run(given, capsys)
    assert (code, kept.read_bytes()) == (2, whole[:-20])
    assert f"{kept}: the same command writes it now; wait until that has ended" in err
    with monkeypatch.context() as disk:
        disk.setattr(served.os, "truncate", full)
        assert f"tokentape: {kept}: No space left on device\n" in run(given, capsys)[2]
    code, out, _ = run([*given, "--concurrency", "1"], capsys)
    assert (code, len(out)) == (0, 1)
    assert [body["prompt"] for body in server.asked] == [*PROMPTS[:4], *PROMPTS[3:]]
    assert kept.read_bytes().startswith(whole)


@pytest.mark.parametrize("has_experts", [True, False])
def test_what_a_server_accepted_of_its_drafts_is_a_tape_of_its_own(
    has_experts: bool, given: list[str], server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.drafts, server.has_experts = True, has_experts
    _, out, _ = run(given, capsys)
    tables = [Store(str(tmp_path / "tape")).open(trace_id).manifest.tables for trace_id in out]
    assert ["routing" in of for of in tables] == [True, False][not has_experts :]
    assert "rounds" in tables[-1]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"has_experts": False}, "response 1 has no routed experts; start the server with --enable-return-routed-experts"),
        ({"model": ""}, "/v1/models: names no model; give the address of an OpenAI-compatible server"),
        ({"url": "http://127.0.0.1:x"}, "/v1/models: answers no JSON; give the address"),
        ({"says": b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}"}, "more expected); start the server, and the same"),
        ({"says": b"SSH-2.0\r\n\r\n"}, "/v1/completions: SSH-2.0"),
        ({"says": b'HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n"\xff"'}, "/v1/completions: answers no JSON"),
        ({"url": "http://127.0.0.1:9"}, "Connection refused; start the server, and the same command goes on from here"),
        ({"url": "file:///etc/passwd"}, "not the address of a server"),
        ({"--dataset": json.dumps({"messages": [{"role": "user", "content": "hi"}]})}, ":0 is a chat"),
        ({"--from": "tgi"}, "unknown engine 'tgi'"),
        ({"--model": "qwen3-30"}, "no model 'qwen3-30' ships"),
    ],
)
def test_what_cannot_be_recorded_is_one_line_and_leaves_no_tape(
    change: dict[str, Any], said: str, given: list[str], server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = list(given)
    for name, value in change.items():
        if name == "url":
            words[1] = value
        elif name == "--model":
            words[3] = value
        elif name == "--dataset":
            Path(words[5]).write_text(value)
        elif name == "--from":
            words += [name, value]
        else:
            setattr(server, name, value)
    code, out, err = run(words, capsys)
    assert (code, out) == (2, [])
    assert said in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "tape/traces").exists()
