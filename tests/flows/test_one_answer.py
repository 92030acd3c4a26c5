"""One step, one answer: the commands of three engines print one number with one band for the same step."""

import re

import pytest
from command import Cli

STEP = re.compile(r"[\d.]+ [mu]s")


@pytest.mark.parametrize("machine", ["h100", "h100-cxl-ndp", "a100"])
def test_a_decode_takes_as_long_whoever_is_asked(tokentape: Cli, machine: str) -> None:
    """All experts where the engine reads them; one request at 2,048 tokens. Replays of tapes: tests/replay/test_one_step.py."""
    of, load = ("qwen3-30b-a3b", "--hardware", machine), ("--batch", "1", "--context", "2048")
    step = tokentape("step", "gpu", *of, *load).out.splitlines()[0]
    near = tokentape("step", "cxl_ndp", "--model", *of, *load, "--hot", "128", "--system", "ours").out
    few = ("--rate", "1", "--requests", "3", "--seeds", "1", "--kv-blocks", "unbounded")
    served = tokentape("serving", "simulate", "--model", *of, *few).out
    told = next(line for line in served.splitlines() if line.startswith("one decode at 2,048 tokens"))
    row = next(line for line in near.splitlines() if "OURS" in line)
    wanted = STEP.findall(step)
    assert len(wanted) == 3
    assert STEP.findall(told) == STEP.findall(row)[:3] == wanted
