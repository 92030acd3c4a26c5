"""What `make bench` says of serving: well-formed JSON, vidur beside it or one line on how to add it, memory of its own."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bench import memory, serving, vidur_peer

ROOT = Path(__file__).resolve().parents[2]
ROWS = [(0.5, 100, 4), (1.25, 30, 9)]
# Stands in for a Python with vidur: reads the requests as vidur would and answers in its place.
STAND_IN = """#!{python}
import csv, json
with open("requests.csv") as file:
    rows = list(csv.DictReader(file))
assert all(int(row["PromptTokenCount"]) and int(row["CompletionTokenCount"]) and row["Date"] == "{date}" for row in rows)
json.load(open("job.json"))
print("INFO a line of log")
found = dict(cpu_s=0.5, n_iterations={n_iterations}, n_finished=len(rows), end_s=float(rows[-1]["Time"]), version="9.9")
print(json.dumps(found))
"""


@pytest.fixture
def without_vidur(monkeypatch):
    monkeypatch.delenv(vidur_peer.PYTHON, raising=False)
    monkeypatch.setattr(vidur_peer, "find_spec", lambda name: None)


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(serving, "N_SEEDS", 2)
    monkeypatch.setattr(serving, "N_REPEATS", 1)


def stand_in(tmp_path, n_iterations):
    path = tmp_path / "python"
    path.write_text(STAND_IN.format(python=sys.executable, n_iterations=n_iterations, date=vidur_peer.DATE))
    path.chmod(0o755)
    return str(path)


@pytest.mark.slow
def test_speed_is_json_with_the_quoted_figure_beside_ours(quick, without_vidur, capsys):
    report = json.loads(json.dumps(serving.speed()))
    for name in ("serving_requests_per_cpu_s", "serving_iterations_per_cpu_s", "serving_ratio_vs_python"):
        assert np.isfinite(report[name])
        assert report[name] > 0
    assert report["serving_requests_per_cpu_s"] == report["serving_chunked_requests_per_cpu_s"]
    assert report["serving_iterations_per_cpu_s"] > report["serving_requests_per_cpu_s"]
    assert report["published"]["vidur"]["requests_per_cpu_s"] == 465
    assert report["published"]["vidur"]["version"] == report["published"]["vidur"]["conditions"] == "not stated"
    assert not [name for name in report if "vidur" in name]
    assert sum(vidur_peer.INSTALL in line for line in capsys.readouterr().out.splitlines()) == 1


def test_a_python_with_vidur_is_asked_and_compared(quick, tmp_path, monkeypatch):
    cost, length_scale = serving.costs()
    requests = serving.synthetic("arxiv", serving.RATE_PER_S, 0, length_scale=length_scale)
    n_iterations = serving.serve(requests, serving.SCHEDULERS["chunked"], cost).n_iterations
    monkeypatch.setenv(vidur_peer.PYTHON, stand_in(tmp_path, n_iterations))
    found = serving.against_vidur(requests, cost, 0.01)
    assert (found["vidur_requests_per_cpu_s"], found["vidur_version"]) == (2 * len(requests), "9.9")
    assert found["serving_ratio_vs_vidur"] == 50
    assert found["vidur_end_s"] == requests.arrival_s[-1]
    assert f"{len(requests)} arXiv requests" in found["vidur_conditions"]
    monkeypatch.setenv(vidur_peer.PYTHON, stand_in(tmp_path, 2 * n_iterations))
    with pytest.raises(AssertionError, match="vidur serves otherwise"):
        serving.against_vidur(requests, cost, 0.01)


@pytest.mark.parametrize("executable", ["/nowhere/python", "{tmp}/exits"])
def test_a_named_python_that_cannot_run_vidur_is_refused(executable, tmp_path, monkeypatch):
    failing = tmp_path / "exits"
    failing.write_text(f"#!{sys.executable}\nimport sys\nsys.exit('no module named vidur')\n")
    failing.chmod(0o755)
    monkeypatch.setenv(vidur_peer.PYTHON, executable.format(tmp=tmp_path))
    with pytest.raises(ValueError, match=f"cannot run vidur .*{vidur_peer.PYTHON}"):
        vidur_peer.bench(ROWS, (0.01, 1e-4), 1.3, 64)


@pytest.mark.slow
@pytest.mark.skipif(vidur_peer.python() is None, reason=f"set {vidur_peer.PYTHON} to a Python with vidur")
def test_vidur_finishes_a_lone_request_when_the_line_says():
    found = vidur_peer.bench([(0.5, 100, 4)], (0.01, 1e-4), 1.3, 64)
    assert found["vidur_n_iterations"] == 5  # two chunks, three decodes
    # vidur rounds the tokens of an iteration up to a multiple of 8.
    assert found["vidur_end_s"] == pytest.approx(0.5 + 5 * 0.01 + 1e-4 * (64 + 40 + 3 * 8))


@pytest.mark.skipif(not memory.STATUS.exists(), reason="needs /proc")
def test_peak_memory_is_not_the_parents():
    held = np.ones(300 * 2**20, np.uint8)
    command = [sys.executable, "-c", "from bench.memory import peak_bytes; print(peak_bytes())"]
    peak = int(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout)
    assert 2**20 < peak < held.nbytes <= memory.peak_bytes()
