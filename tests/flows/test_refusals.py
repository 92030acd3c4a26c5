"""What is refused: one line that names the remedy, exit code 2, nothing written; and what is checked before kernels are imported.

A line of a table is a command and, after the bar, words of what it says. All run in one folder, which they leave as it is.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import polars as pl
import pytest
from command import Cli, codes_without, command_names, files
from tiny_gpu import MY_GPU, gemm_rows, write_config
from tiny_tape import tiny_tables, write_losses, write_tiny

from tokentape.flows import console
from tokentape.flows.commands import hardware as commands_hardware
from tokentape.warehouse.tape import Store

# Refused with neither numba nor torch there.
EARLY = """
replay tiny --policy lruu --capacity 50% --scope global | did you mean 'lru'
replay tiny --policy nowhere.py:Mine --capacity 50% --scope global | no such file
replay tiny --policy lru --capacity much --scope global | not understood
replay tiny --policy lru --capacity 50% --scope globl | global or per-layer
replay tiny --policy lru --capacity 50% | --scope
replay tiny --policy lru --capacity 50% --scope global --hardware phone | phone-lpddr5x-ufs4
replay tiny --policy lru --capacity 50% --scope global --param size=3 | unknown parameter of lru
replay tiny --policy lru --capacity 50% --scope global --expert-format int3 | int4
replay nothing --policy lru --capacity 50% --scope global | no tape 'nothing'
replay | --help
replay tiny --policy slicemoe --capacity 50% --scope per-layer | --scope global only
replay tiny --policy lru --capacity 50% --scope global --seed 3 | --seed 3 has no effect on lru
replay tiny --policy slicemoe --capacity 50% --scope global --recency hits-first | does not go with slicemoe
replay tiny --policy lru --capacity 50% --scope global --lookup serial --recency hits-first | serial lookups take list-order
replay tiny --policy lru --capacity 50% --scope global --capacity 25% | --capacity is given 2 times and takes one value
replay tiny --policy lru --capacity 50% --scope global --lookup atomi | choose atomic or serial

compare nothing --budget 25% | no tape 'nothing'

verify tiny --budget-mib 1 | records no residency
verify tiny --budget-mib inf | no cache size
verify tiny --budget-mib nan | no cache size
verify tinny --budget-mib 1 | no tape 'tinny' in ./tape

study baseline | did you mean 'baselines'
study baselines --no-live | measures nothing inside a live model
study baselines --workers 1 --workers=2 | --workers is given 2 times and takes one value
study kele | did you mean 'kelle'
study kelle --runner thread | did you mean 'threads'
study nowhere.toml | no such study; shipped ones are

import bigmoe nowhere.csv | nowhere.csv
import requests absent.csv | absent.csv
import requests some.csv --form xml | unknown form of requests 'xml'
import requests some.csv | no column 'arrival_s'
import requests header.csv | a header and no rows
import requests half.csv | row 1: n_output_tokens is '5.5', not a whole number
import requests huge.csv | row 1: n_output_tokens is '9999999999', not a whole number
import vllm none.npz --config none.json | none.json: No such file or directory
import routing none.csv --experts 8 | give either the model's config.json or the number of experts per layer
import acceptance none.json --like tinny | No such option: --like

decide kv x --policy arp | aerp
decide kv x --policy aerp --param bugdet=5 | budget
decide kv x --policy aerp --param budget=many | budget=many
decide kv x --policy aerp --param budget=16 --param sink=8 --param recent=8 | evicted
decide kv tiny --policy full --renorm --no-renorm | --renorm is given 2 times and takes one value
decide kv tinny --policy full | no tape 'tinny' in ./tape
decide kv tiny-0001 --policy ful | did you mean 'full'
decide place tiny-0001 --capacity '9 experts' | more than all experts
decide place tiny-0001 --capacity 30kB | records no expert sizes
decide place tiny-0001 --scope layer | unknown scope
decide place tiny-0001 --placement lru | unknown placement
decide place tiny-0001 --placement near_if_rare | run it in a system
decide place tiny-0001 --batch a | is not a list of numbers
decide place tiny-0001 --batch 0 | batch 0
decide place tiny-0001 --alpha 2 | alpha
decide place tiny-0001 --placement orcle | did you mean 'oracle'
decide precision tiny-0001 | losses
decide precision losses | no losses of gptq; it has rtn
decide precision losses --method rtn --mean-bits 5 | must lie in 1..4
decide precision losses --method rtn --scope all | unknown scope
decide precision losses --method rtn --loss-weight all | unknown loss weight
decide precision losses --method rtn --loss-weight prefill_share | needs prompts
decide precision tinny | no tape 'tinny' in ./tape
decide draft tinny | no tape 'tinny' in ./tape

evaluate --datasets code --tape | --tape records what a policy applies; give --policy
evaluate --seeds 3 | --seeds has no effect without --policy
evaluate --param budget=64 | --param has no effect without --policy
evaluate --policy h2o --policy aerp | --policy is given 2 times and takes one value

hardware show h10 | unknown hardware 'h10'; did you mean h100?
hardware show nowhere.toml | nowhere.toml: no such hardware file; shipped machines: a100
hardware show typo.toml | typo.toml: engines.sm: unknown key 'clok_hz'; known:
hardware show no-source.toml | no-source.toml: max_w has no source; give a URL
hardware show too-fast.toml | too-fast.toml: tiers.hbm: peak_bytes_per_s = 9e+12 is above channels x pins
hardware show round.toml | round.toml: base runs in a circle (round.toml -> about.toml -> round.toml)
hardware show not.toml | not.toml: not TOML:
hardware diff h100 a10 | did you mean a100?
hardware new h100 my-gpu | my-gpu.toml exists; choose another name, or remove it first
hardware new h100 ../mine | '../mine' is not a machine's name; use letters
hardware new typo.toml mine | typo.toml: engines.sm: unknown key
hardware new h10 | Missing argument 'NAME'.
hardware validate truncated.parquet --record | truncated.parquet: not a readable Parquet file
hardware validate gemm.parquet --json | no machine has measured_as = "My GPU"; give
hardware validate --nope | No such option: --nope
validate serving nowhere --hardware h100 | nowhere: neither a request log (meta.json, requests.jsonl) nor experiments
validate offload nowhere | nowhere: none of the logs of
hardware list --nope | No such option: --nope
fit qwen3-30b-a3b nope | unknown hardware 'nope'
fit llama-3-8b h100 --budget 1GB | --budget 1GB has no effect: h100 has no tier in front of the experts

models show qwen3-30b | give qwen3-30b-a3b, or the path of a config.json
models show not.json | not.json: cannot be read as JSON
models show vision.json | vocab_size is missing; give the config of a decoder-only language model
models show no-top-k.json | no-top-k.json:
models show nowhere.json | nowhere.json: cannot be read
models list --nope | No such option: --nope
models quantise none | none: no such file or directory
models train --nope | No such option: --nope

step gpu no-hidden.json | no-hidden.json: config.json: hidden_size is missing; give
step gpu llama-3-8b --batch 0 --prompt 0 | a step needs decodes or prompt tokens, got batch 0
step gpu llama-3-8b --batch -1 | a step needs decodes or prompt tokens, got batch -1
step gpu llama-3-8b --context -1 | context_tokens must count the token itself, got -1
step gpu llama-3-8b --weights int3 | unknown number format 'int3'; known: int8-g32
step gpu llama-3-8b --hardware h10 --record | did you mean h100?
step gpu qwen3-30b-a3b --coverage recorded --record | --coverage recorded needs --trace
step gpu qwen3-30b-a3b --coverage unifrm | did you mean 'uniform'?
step gpu qwen3-30b-a3b --coverage power-law | power-law needs exponent, as in power-law=0.8, or --trace
step gpu tiny.json --trace nothing | no tape 'nothing'
step cxl_ndp | give --model, --tape or both
step cxl_ndp --model mixtral-8x7b --system monda | did you mean 'monde'
step cxl_ndp --model mixtral-8x7b --bits 5 | 5 bits on average
step cxl_ndp --model mixtral-8x7b --bits two | --bits two
step cxl_ndp --model mixtral-8x7b --hot 9 | 9 hot experts of 8
step cxl_ndp --model mixtral-8x7b --placement orcle | unknown placement 'orcle'; did you mean 'oracle'
step cxl_ndp --model mixtral-8x7b --rule gredy | unknown bit rule 'gredy'; did you mean 'greedy'
step cxl_ndp --model mixtral-8x7b --profile paper | unknown cost profile
step cxl_ndp --model llama-2-7b | needs experts of known width
step cxl_ndp --tape none | no tape fits none
step cxl_ndp --model mixtral | no model 'mixtral' ships
step cxl_ndp --model mixtral-8x7b --alpha 2 | alpha 2.0 must lie in 0..1: the weight of counts against gate weights
step cxl_ndp --model mixtral-8x7b --hardware h100-cxl | did you mean h100-cxl-ndp
step cxl_ndp --model mixtral-8x7b --fit none | cxl_ndp-none.toml: no such file of cxl_ndp constants
step elmoe3d --model olmoe-1b-7b --alpha .8 | give --beta and --exponent
step elmoe3d --model olmoe-1b-7b --beta .5 --exponent 1 | give --alpha or --accepted
step elmoe3d --model qwen3-30b-a3b --scheme medusa --alpha .5 | scheme 'medusa' is unknown
step elmoe3d --model qwen3-30b-a3b --batch a | --batch 'a': give numbers
step elmoe3d --model qwen3-30b-a3b --nodes 3 | give two numbers
step elmoe3d --model qwen3-30b-a3b --alpha .5 --profile papers | unknown cost profile 'papers'
step elmoe3d --model llama-3-8b --alpha .5 --beta .5 --exponent 1 | has no experts
step elmoe3d --model qwen3-30b-a3b --alpha 1.5 | it must be between 0 and 1
step elmoe3d --model qwen | no model 'qwen' ships
step elmoe3d --model qwen3-30b-a3b --hardware elmoe | did you mean elmoe3d-xpu
step elmoe3d --model qwen3-30b-a3b --accepted-form x | form of acceptance 'x' is unknown
step elmoe3d --model qwen3-30b-a3b --hit-model ch | hit model 'ch' is unknown
step elmoe3d --model qwen3-30b-a3b --expert-format int5 | unknown expert format 'int5'
step elmoe3d --model qwen3-30b-a3b --fit elmoe3d-l2 | elmoe3d-l2.toml: no such file of elmoe3d constants
step kelle llama-2-7b --mode paperr | did you mean 'paper'
step kelle llama-2-7b --knobs fitted | known: calibrated, zero
step kelle llama-2-7b --knobs none.toml | no such file of kelle constants
step kelle llama-2-7b --profile kell | did you mean kelle
step kelle llama-2-7b --batch 0 | batch
step kelle qwen | no model 'qwen' ships

calibrate gpu truncated.parquet --hardware my-gpu.toml | truncated.parquet: not a readable Parquet file
calibrate gpu zero.parquet --hardware my-gpu.toml | zero.parquet: not a readable Parquet file
calibrate gpu no-rows.parquet --hardware my-gpu.toml | no rows of dtype bfloat16 in no-rows.parquet; found none
calibrate gpu other.parquet --hardware my-gpu.toml | other.parquet: column framework is missing; a measured table has
calibrate gpu no-m.parquet --hardware my-gpu.toml | no-m.parquet: column m is missing; gemm rows need m, n, k
calibrate gpu negative.parquet --hardware my-gpu.toml | negative.parquet: row 1: latency -1.0 is not a time in ms; remove
calibrate gpu three.parquet --hardware my-gpu.toml | gemm: 3 rows cannot fix 5 constants; measure more
calibrate gpu gemm.parquet | no machine has measured_as = "My GPU"; give --hardware my.toml with that key
calibrate gpu gemm.parquet --hardware mac-unified | no machine has measured_as = "My GPU"
calibrate gpu gemm.parquet --hardware my-gpu.toml --dtype fp8 | no rows of dtype fp8 in gemm.parquet; found bfloat16
calibrate gpu | no measured tables: give Parquet files, or a folder that holds some
calibrate gpu nowhere | nowhere: no such file or folder of measured tables
calibrate serving --mode fast | mode 'fast' is unknown
calibrate serving --check none | serving-none.toml: no such file of serving constants
calibrate cxl_ndp --check other | no such file of cxl_ndp constants
calibrate kelle --check other | no such file of kelle constants
calibrate router --like mixtral | No such option: --like
calibrate elmoe3d --check none | elmoe3d-none.toml: no such file of elmoe3d constants
calibrate elmoe3d --level L9 | level 'L9' with rows 'calibrate' is unknown

serving simulate --scheduler laired --rate 1 | did you mean 'layered'
serving simulate --scheduler chunked --param chunk=3 --rate 1 | did you mean 'chunk_tokens'
serving simulate --scheduler chunked --param chunk_tokens=0 --rate 1 | chunk_tokens must be at least 1
serving simulate --param n_lg_rule=fixed --param n_max=99 --rate 1 | n_max 99
serving simulate --rate -1 | rate -1.0 requests/s must be above 0
serving simulate --rate nan | rate nan requests/s must be above 0
serving simulate --rate inf | rate inf requests/s must be above 0
serving simulate --workload long.csv --arrival poisson --rate inf | rate inf requests/s must be above 0
serving simulate --rate 0.001 | 0.001 requests/s bring none in 600 s
serving simulate | --rate is missing
serving simulate --rate 1 --cv 0 | cv 0 must lie in 0.001..100
serving simulate --rate 1 --cv 2 --arrival poisson | --cv 2 goes with --arrival gamma
serving simulate --rate 1 --arrival poison | unknown arrival 'poison'; did you mean 'poisson'
serving simulate --rate 1 --slo-ttft 3 | --slo-ttft and --slo-tbt go together
serving simulate --rate 1 --expert-times fit | unknown source of expert times 'fit'; did you mean 'fitted'
serving simulate --rate 1 --profile layered_prefill --expert-times measured --weights int4 | not of int4
serving simulate --rate 1 --profile layered_prefill --expert-times measured --model qwen3-8b | has no experts
serving simulate --rate 1 --expert-times measured | --expert-times has no effect with --profile physical
serving simulate --rate 1 --profile layered | did you mean layered_prefill
serving simulate --rate 1 --coverage guess | coverage 'guess' is none of
serving simulate --rate 1 --fit nope | no such file of serving constants
serving simulate --rate 1 --model nope | no model 'nope'
serving simulate --workload prompt-x | prompt-8192
serving simulate --workload unsorted.csv | request 2: arrival_s is 0.5; it comes before the one ahead of it
serving simulate --workload negative.csv | request 0: arrival_s is -1.0
serving simulate --workload zero.csv | request 0: n_prompt_tokens is 0
serving simulate --workload empty.csv | there are no requests to serve
serving simulate --workload nothing.csv | the file is empty
serving simulate --workload columns.csv | column n_output_tokens is missing
serving simulate --workload words.csv | the columns hold numbers
serving simulate --workload gap.csv | request 0: n_prompt_tokens is nan; it must be a whole number
serving simulate --workload half.csv | request 0: n_output_tokens is 5.5; it must be a whole number
serving simulate --workload huge.csv | no model takes more than 16777216 tokens
serving simulate --workload . | no .csv and no tape
serving simulate --workload absent.csv | absent.csv
serving simulate --workload nosuch | no .csv and no tape
serving simulate --workload long.csv --kv-blocks 3 | kv_blocks is 3
serving simulate --rate 1 --verify-nodes 3 | --verify-nodes needs --acceptance
serving simulate --rate 1 --acceptance 0.8 | --acceptance and --draft-ms go with --verify-nodes
serving simulate --rate 1 --verify-nodes 3 --acceptance 1.8 | acceptance 1.8 is no chance
serving simulate --rate 1 --verify-nodes 1 --acceptance 0.8,0.7 | n_nodes is 1
serving simulate --rate 1 --verify-nodes 3 --acceptance often | 'often' is no number and no tape
serving simulate --workload long.csv --scheduler layered --kv-blocks 0 | kv_blocks must be at least 1
serving simulate --rate 1 --kv-blocks many | --kv-blocks many: kv_blocks must be at least 1, in whole blocks
serving simulate --rate 1 --kv-blocks 90000 | beside 61.1 GB of weights
serving simulate --rate 1 --kv-blocks unbounded --memory-frac 0.8 | --memory-frac has no effect with --kv-blocks
serving simulate --rate 1 --memory-frac 0 | --memory-frac 0 must be above 0
serving simulate --workload long.csv --seeds 4 | --seeds has no effect with --arrival trace: long.csv is served as it is
serving simulate --workload long.csv --requests 500 | --requests has no effect with --arrival trace
serving simulate --workload long.csv --arrival at_once --seeds 4 | --seeds has no effect with --arrival at_once
serving simulate --arrival at_once --rate 2 | --rate has no effect with --arrival at_once: all requests come at once
serving simulate --workload prompt-512 --rate 2 | --rate has no effect with --workload prompt-512
serving simulate --workload prompt-512 --seeds 2 | --seeds has no effect with --workload prompt-512: nothing is drawn
serving simulate --workload prompt-512 --requests 2 | --requests has no effect with --workload prompt-512: it is one prompt
serving simulate --workload prompt-512 --verify-nodes 2 --acceptance 0.5 | it asks for one token, and nothing decodes
serving simulate --workload prompt-512 --arrival poisson | --arrival has no effect with --workload prompt-512
serving simulate --rate 1 --prefix-cache | --prefix-cache has no effect with --arrival poisson: only a tape names prefix
serving simulate --workload long.csv --prefix-cache | --prefix-cache has no effect with --arrival trace: only a tape
serving simulate --rate 1 --model qwen3-8b --weights int4 | --weights int4 has no effect: qwen3-8b has no experts
serving simulate --rate 1 --model qwen3-8b --coverage full | --coverage full has no effect: qwen3-8b has no experts
serving simulate --rate 1 --scheduler disaggregated --hardware h100 --slo-ttft 3 --slo-tbt 0.2 | no effect on disaggregated
serving simulate --rate 1 --param nmax=3 | did you mean 'n_max'
serving simulate --rate 1 --model qwen | no model 'qwen' ships
serving simulate --rate 1 --hardware h100x | did you mean h100x8
serving simulate --rate 1 --weights int5 | unknown number format 'int5'
serving capacity --arrival at_once | --arrival at_once has no rate to search for
serving capacity --workload prompt-512 | --workload prompt-512 has no rate to search for
serving capacity --scheduler disaggregated | disaggregated is two engines in series
serving capacity --workload header.csv --seeds 3 | --seeds has no effect with --arrival trace
serving capacity --kv-blocks 100 | kv_blocks is 100
serving capacity --workload 30k | give --slo-ttft and --slo-tbt
serving capacity --attained 1.5 | service level
serving capacity --scheduler layred | did you mean 'layered'

claims cxl_ndp | run `tokentape study cxl_ndp` first
claims kelle | run `tokentape study kelle` first
claims slicemo | did you mean 'slicemoe'
claims slicemoe | run `tokentape study slicemoe` first
claims kele | did you mean 'kelle'

synthesize --like Mixtral-8x7B --routing drift | routing 'drift' is unknown
synthesize --like Mixtral-8x7B --routing table | routing table is drawn from --counts
synthesize --like Mixtral-8x7B --routing table --counts none.json | No such file
synthesize --like mixtral --routing context | no model 'mixtral' ships

query best | did you mean 'best_policy'
sql 'select 1' | tokentape load
sql select --database none.duckdb | no warehouse at none.duckdb
rm tiny | tiny-0001
serve --cron 'publsh=* * * * *' | did you mean 'publish'
serve --study kele | did you mean 'kelle'
repla | replay
timeline zz | unknown result 'zz'
explain zz | unknown result 'zz'
load --store a --store b | --store is given 2 times and takes one value
load --store nowhere | nowhere: no store there
migrate --store nowhere | no store at nowhere
ls --nope | No such option: --nope
show tinny | no tape 'tinny' in ./tape
check --nope | No such option: --nope
site --database none.duckdb | no warehouse at none.duckdb
fidelity --nope | No such option: --nope
demo --nope | No such option: --nope
"""
# Refused after the tape, the model or its cache are known.
LATE = """
capture --model embeded --dataset math | did you mean 'embedded'
capture --model embedded --dataset maths | did you mean 'math'
capture --model embedded --dataset empty.jsonl | empty
capture --model embedded --dataset math --tables tokns | did you mean 'tokens'
capture --model embedded --dataset math --max-prompt-tokens 100000 | context
capture --model embedded --dataset math --draft elastik | did you mean 'elastic'
capture --model embedded --dataset math --draft elastic --pool hot | known: hotness
capture --model embedded --dataset math --tables rounds | name a drafter
capture --model embedded --dataset math --draft ngram --draft-width 2 | one chain
capture --model embedded --dataset math --draft elastic --teacher-forced | does not go with --draft
capture --model embedded --dataset math --draft model:./nothing-here | nothing-here
decide place tiny-0001 --bin-steps 0 | bin of 0 steps
decide place tiny-0001 --placement ema --scope global | moves experts layer by layer
decide place tiny-0001 --batch 4 | a batch of 4
decide place tiny-0001 --weight-source softmax | holds no scores
decide place empty | has no routing rows
evaluate --policy aerp --cache 50% | what aerp takes by --param
evaluate --policy aerp --tape | --tape
evaluate --policy aerp --param rate=0.1 | loses no bits
evaluate --policy aerp --param storage=int8 | quarot
evaluate --policy kelle --param intervals=1,2 | four
evaluate --policy oracle --param budget=32 | over a tape only
evaluate --policy lru | slicemoe
evaluate --policy cxl_ndp | cxl_ndp needs a tape of losses: run `tokentape capture
evaluate --policy cxl_ndp --param losses=tiny | holds no losses
evaluate --policy slicemoe --cache 40% --param router=buddy | give --param router.similarity=TRACE
evaluate --policy slicemoe --cache 40% --param router=buddy --param router.similarity=nothing | no tape 'nothing'
evaluate --policy slicemoe --cache 40% --param router=buddy --param router.similarity=tiny | holds the chosen experts only
orderings --of x | unknown kind of orderings 'x'
replay tiny --policy lru --capacity '1 B' --scope global | below one expert
replay tiny --policy lru --capacity 10% --scope per-layer | top-k
replay tiny --policy slicemoe --capacity 50% --scope global --param router=cache_prior | record the tape with scores
step gpu qwen3-30b-a3b --trace tiny --record | tiny-0001 routes over 8 experts, top-2; the model has 128
step gpu tiny.json --trace tiny --batch 1000 --record | not of 1000; record more requests or longer prompts
"""
HEADER = "arrival_s,n_prompt_tokens,n_output_tokens\n"
TEXTS = {
    "unsorted.csv": HEADER + "0,10,5\n1,10,5\n0.5,10,5\n", "negative.csv": HEADER + "-1,10,5\n", "zero.csv": HEADER + "0,0,5\n",
    "empty.csv": HEADER, "nothing.csv": "", "columns.csv": "arrival_s,n_prompt_tokens\n0,1\n", "some.csv": "a,b\n1,2\n",
    "words.csv": HEADER + "0,many,5\n", "long.csv": HEADER + "0,100,5\n", "gap.csv": HEADER + "0,,5\n", "header.csv": HEADER,
    "half.csv": HEADER + "0,5,5.5\n", "huge.csv": HEADER + "0,5,9999999999\n", "empty.jsonl": "", "not.json": "hello",
    "typo.toml": 'base = "h100"\n[engines.sm]\nclok_hz = { value = 1e9, source = "assumed" }\n',
    "no-source.toml": 'base = "h100"\nname = "no-source"\nmax_w = 500\n',
    "too-fast.toml": 'base = "h100"\nname = "too-fast"\n[tiers.hbm]\npeak_bytes_per_s = { value = 9e12, source = "assumed" }\n',
    "round.toml": 'base = "about.toml"\n', "about.toml": 'base = "round.toml"\n', "not.toml": "[[[", "my-gpu.toml": MY_GPU,
}  # fmt: skip
CONFIGS = {
    "tiny.json": {},
    "no-hidden.json": {"hidden_size": None},
    "vision.json": {"vocab_size": None, "model_type": "vit", "image_size": 224},
    "no-top-k.json": {"num_experts_per_tok": None},
}


def rows(table: str) -> list[tuple[str, str]]:
    """Commands and words of what each says."""
    return [(command, says) for command, _, says in (line.partition(" | ") for line in table.splitlines() if line)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of three tapes, tables of requests, machines, configs and measured tables, nearly all of them bad."""
    root = tmp_path_factory.mktemp("refused")
    store = Store(str(root / "tape"))
    write_tiny(store)
    write_losses(store, "losses")
    write_tiny(store, "empty", more={"routing": tiny_tables()["routing"].slice(0, 0)}, flags={"missing_rows": {}})
    for name, text in TEXTS.items():
        (root / name).write_text(text)
    for name, changes in CONFIGS.items():
        write_config(root / name, **changes)
    gemm_rows().write_parquet(root / "gemm.parquet")
    (root / "truncated.parquet").write_bytes((root / "gemm.parquet").read_bytes()[:-40])
    (root / "zero.parquet").touch()
    gemm_rows().clear().write_parquet(root / "no-rows.parquet")
    pl.DataFrame({"a": [1]}).write_parquet(root / "other.parquet")
    gemm_rows().drop("m").write_parquet(root / "no-m.parquet")
    gemm_rows(3).write_parquet(root / "three.parquet")
    gemm_rows(2, latency=[1.0, -1.0]).write_parquet(root / "negative.parquet")
    return root


def test_arguments_are_checked_before_kernels_are_imported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for name in ("TOKENTAPE_STORE", "TOKENTAPE_DEBUG", commands_hardware.TABLES_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    before, wrong = files(folder), rows(EARLY)
    codes, said = codes_without(("numba", "torch"), [shlex.split(command) for command, _ in wrong], folder)
    assert codes == ["2"] * len(wrong), said
    otherwise = [
        (command, line)
        for (command, says), line in zip(wrong, said.splitlines(), strict=True)
        if says not in line or not line.startswith("tokentape: ")
    ]
    assert otherwise == []
    assert files(folder) == before


@pytest.mark.parametrize(("command", "says"), rows(LATE))
def test_refused_after_a_look_is_one_line(
    tokentape: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch, command: str, says: str
) -> None:
    if command.startswith(("capture", "evaluate", "orderings")):
        pytest.importorskip("torch")
    monkeypatch.setattr(console, "PROGRESS_EVERY_S", 600)
    monkeypatch.chdir(folder)
    before = files(folder)
    done = tokentape(*shlex.split(command))
    told = done.err.splitlines()
    assert (done.code, done.out) == (2, ""), done.err
    assert len(told) == 1
    assert told[0].startswith("tokentape: ")
    assert says in told[0]
    assert files(folder) == before


def test_every_command_refuses_something() -> None:
    refused = [command for table in (EARLY, LATE) for command, _ in rows(table)]
    assert [name for name in command_names() if not any(line.startswith(name) for line in refused)] == []
