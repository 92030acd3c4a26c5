"""Machine files: numbers with sources, bases, inherited sources, refusals that name file and key, and the page made of them."""

import json
import re
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from refusing import refuses

from bench.docs.machines import markdown
from tokentape.hw import dram, spec
from tokentape.hw.spec import SPECS, BadSpec, load, shipped, with_values

ROOT = Path(__file__).resolve().parents[2]

HERE = Path(__file__).resolve().parent
MINE = (HERE / "mine.toml").read_text()


def put(folder: Path, name: str, text: str) -> str:
    path = folder / f"{name}.toml"
    path.write_text(text)
    return str(path)


def edited(*pairs: tuple[str, str]) -> str:
    text = MINE
    for old, new in pairs:
        assert old in text, old
        text = text.replace(old, new, 1)
    return text


@pytest.mark.parametrize("name", shipped())
def test_a_shipped_machine_loads_under_its_name(name):
    """With a source and a band for every number: without them it would not load."""
    spec = load(name)
    assert spec.name == name
    assert spec.title
    assert len(spec.numbers()) >= 15
    assert (SPECS / f"{name}.toml").read_text().startswith("# "), "the file opens with what the machine is"


@pytest.mark.parametrize("name", shipped())
def test_peaks_of_shipped_machines_follow_from_units_and_pins_where_the_file_gives_them(name):
    spec = load(name)
    for engine in spec.engines.values():
        for dtype, rate in engine.ops_per_s.items():
            bound = engine.bound_ops_per_s(dtype)
            assert bound is None or rate.value == pytest.approx(bound, rel=0.005), dtype
    if spec.idle_w and spec.max_w:
        assert spec.idle_w.value <= spec.static_w.value <= spec.max_w.value


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        *json.loads((HERE / "bad_machines.json").read_text()),
        ("value = 12e9", f"value = 1{'0' * 400}", "capacity_bytes: value, low and high must be finite"),
    ],
)
def test_what_no_machine_can_have_is_refused_in_one_line(old, new, message, tmp_path):
    assert "mine.toml" in refuses(message, load, put(tmp_path, "mine", edited((old, new))), error=BadSpec)


@pytest.mark.parametrize(("text", "message"), json.loads((HERE / "bad_bases.json").read_text()))
def test_what_is_laid_over_a_base_is_checked_like_a_whole_file(text, message, tmp_path):
    refuses(message, load, put(tmp_path, "mine", text if "base" in text else f'base = "h100"\n{text}'), error=BadSpec)
    empty = put(tmp_path, "mine", 'base = "h100"\nname = "mine"\n[links]')
    assert load(empty).links == load("h100").links


def test_a_files_source_is_inherited_by_bare_numbers_and_kept_through_a_base(tmp_path):
    bare = edited(('{ value = 12e9, source = "data sheet" }', "12e9"), (', source = "measured"', ""))
    below = put(tmp_path, "below", 'source = "Paper Table 1"\n' + bare)
    assert load(below).tiers["dram"].capacity_bytes.source == "Paper Table 1"
    assert load(below).tiers["dram"].read_pj_per_bit.source == "Paper Table 1"
    assert load(below).tiers["dram"].peak_bytes_per_s.source == "data sheet"

    differs = 'base = "below.toml"\nsource = "Paper Table 2"\nname = "above"\n[tiers.flash]\ncapacity_bytes = 1e12'
    above = load(put(tmp_path, "above", differs))
    assert above.tiers["flash"].capacity_bytes.source == "Paper Table 2"
    assert above.tiers["dram"].capacity_bytes.source == "Paper Table 1"

    put(tmp_path, "naked", edited((', source = "measured"', "")))
    with pytest.raises(BadSpec, match="read_pj_per_bit has no source"):
        load(put(tmp_path, "lender", 'base = "naked.toml"\nsource = "Paper Table 2"\nname = "lender"'))


def test_a_chain_of_bases_holds_only_what_differs(tmp_path):
    put(tmp_path, "one", MINE)
    read, latency = ("read_pj_per_bit = { value = 5.0, source = 'b' }", "latency_s = { value = 0.0, source = 'c' }")
    put(tmp_path, "two", f'base = "one.toml"\nname = "two"\nn_devices = 2\n[tiers.dram]\n{read}')
    put(tmp_path, "three", f'base = "two.toml"\nname = "three"\nbacking = ""\n[tiers.flash]\n{latency}')
    one, two, three = (load(str(tmp_path / f"{name}.toml")) for name in ("one", "two", "three"))
    assert (one.name, two.name, three.name) == ("mine", "two", "three")
    assert (one.n_devices, three.n_devices) == (1, 2)
    number = three.tiers["dram"].read_pj_per_bit
    assert (number.low, number.value, number.high, number.source) == (5.0, 5.0, 5.0, "b"), (
        "a number replaces a number with its band"
    )
    assert three.tiers["flash"].latency_s.value == 0.0
    assert three.tiers["dram"].write_pj_per_bit == one.tiers["dram"].write_pj_per_bit
    assert three.backing == ""
    assert len({one.sha256, two.sha256, three.sha256}) == 3

    put(tmp_path, "one", MINE.replace("value = 12e9", "value = 16e9"))
    changed = load(str(tmp_path / "three.toml"))
    assert changed.tiers["dram"].capacity_bytes.value == 16e9
    assert changed.sha256 != three.sha256, "the hash covers the bases"


def test_a_shipped_machine_can_be_a_base_and_a_circle_in_other_words_is_named(tmp_path):
    mine = load(put(tmp_path, "mine", 'base = "h100"\nname = "mine"\nmax_w = { value = 500, source = "power cap" }'))
    assert mine.max_w.value == 500
    assert mine.tiers == load("h100").tiers
    put(tmp_path, "round", f'base = "../{tmp_path.name}/round.toml"\nname = "round"')  # another spelling of the same file
    refuses(r"round\.toml: base runs in a circle \(round.toml -> round.toml\)", load, str(tmp_path / "round.toml"), error=BadSpec)


@pytest.mark.parametrize(("chosen", "kept"), [("", "bank-group"), ('address_map = "row"\n', "row")])
def test_a_tier_with_a_timing_preset_and_no_efficiency_of_its_own_takes_the_closed_form(chosen, kept, tmp_path):
    text = edited(('efficiency_frac = { value = 0.9, source = "assumed" }\n', f'timing = "lpddr5-6400"\n{chosen}'))
    share = load(put(tmp_path, "mine", text)).tiers["dram"].efficiency_frac
    by_map = {name: dram.stream_frac(dram.timing("lpddr5-6400"), name) for name in dram.ADDRESS_MAPS}
    assert (share.value, share.low, share.high) == (by_map[kept], min(by_map.values()), max(by_map.values()))
    assert not share.is_assumed
    put(tmp_path, "one", MINE)  # which gives an efficiency
    derived = f'base = "one.toml"\nname = "two"\n[tiers.dram]\ntiming = "lpddr5-6400"\n{chosen}'
    assert load(put(tmp_path, "two", derived)).tiers["dram"].efficiency_frac == share


@pytest.mark.parametrize("own", ["", 'efficiency_frac = { value = 0.9, source = "assumed" }\n'])
@pytest.mark.parametrize(
    ("timing", "message"),
    [
        ("3", "timing must be text, found 3"),
        ('"lpddr9"', r"timing: unknown DRAM timing 'lpddr9'; did you mean lpddr"),
        ('"no.toml"', r"timing: no\.toml: no such timing file"),
        ('"lpddr5-6400"\naddress_map = "diagonal"', "address_map = 'diagonal'; known: bank-group, row"),
    ],
)
def test_an_unknown_timing_or_address_map_names_the_file_that_asks_for_it(timing, message, own, tmp_path):
    text = edited(('efficiency_frac = { value = 0.9, source = "assumed" }\n', f"timing = {timing}\n{own}"))
    refuses(rf"mine\.toml: tiers\.dram: {message}", load, put(tmp_path, "mine", text), error=BadSpec)


def test_links_are_found_by_their_ends_and_in_one_direction(tmp_path):
    spec = load(put(tmp_path, "mine", MINE))
    assert spec.link("flash", "dram") == ("bus", spec.links["bus"])
    assert spec.link("dram", "flash") is None


def test_refresh_of_a_tier_takes_its_band_from_the_opposite_end_of_the_interval(tmp_path):
    extra = """
refresh_j = { value = 2e-3, low = 1e-3, high = 4e-3, source = "s" }
refresh_interval_s = { value = 1e-3, low = 5e-4, high = 2e-3, source = "s" }
"""
    dram = load(put(tmp_path, "mine", edited(('kind = "dram"', f'kind = "dram"{extra}')))).tiers["dram"]
    assert [dram.refresh_w(end) for end in ("low", "value", "high")] == pytest.approx([0.5, 2.0, 8.0])
    assert load("h100").tiers["hbm"].refresh_w() == 0.0


def test_the_page_lists_every_number_and_is_current():
    page = (ROOT / "docs/machines.md").read_text(encoding="utf-8")
    assert page == markdown(shipped()), "run `python -m bench.docs.machines docs/machines.md`"
    assert page.count("\n| `") == sum(len(load(name).numbers()) for name in shipped())
    assumed = [int(share) for share in re.findall(r"\((\d+) %\) \|$", page, re.M)]
    told = f"{min(assumed)} to {max(assumed)} % of a machine's numbers are"
    assert len(assumed) == len(shipped())
    assert told in " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())


@pytest.fixture
def install(tmp_path, monkeypatch):
    """`install(name, value)` adds an entry point; module `machine_files` holds what they may point at."""
    (tmp_path / "machine_files.py").write_text(
        "from pathlib import Path\nHERE = Path(__file__).parent\nMINE, TEXT = HERE / 'mine.toml', str(HERE / 'mine.toml')\n"
        "GONE, NUMBER = HERE / 'gone.toml', 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "machine_files", raising=False)
    points = []
    monkeypatch.setattr(spec, "entry_points", lambda group: [point for point in points if point.group == group])

    def add(name, value):
        points.append(EntryPoint(name, value, "tokentape.machines"))
        spec.installed.cache_clear()

    yield add
    spec.installed.cache_clear()


@pytest.mark.parametrize("value", ["machine_files:MINE", "machine_files:TEXT"])
def test_a_machine_of_an_installed_package_goes_by_its_name(tmp_path, install, value):
    put(tmp_path, "mine", MINE)
    install("mine", value)
    assert load("mine") == load(str(tmp_path / "mine.toml"))
    assert "mine" not in shipped()
    based = load(put(tmp_path, "based", 'name = "based"\nbase = "mine"\ntitle = "on it"\n'))
    assert based.tiers == load("mine").tiers
    refuses(r"unknown hardware 'min'; did you mean mine.*; installed: mine", load, "min", error=BadSpec)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("odd", "machine_files:GONE", r"entry point odd = machine_files:GONE: no such hardware file .*gone\.toml"),
        ("odd", "machine_files:NUMBER", "entry point odd = machine_files:NUMBER: not the path of a TOML file: TypeError"),
        ("odd", "machine_files:ABSENT", "entry point odd = machine_files:ABSENT: not the path of a TOML file: AttributeError"),
        ("odd", "nothing_of_this_name:X", "ModuleNotFoundError"),
        ("odd", "machine_files:MINE", r"mine\.toml: name = 'mine', but its entry point is called odd"),
    ],
)
def test_an_entry_point_that_is_no_machine_is_named(tmp_path, install, name, value, says):
    put(tmp_path, "mine", MINE)
    install(name, value)
    refuses(says, load, name, error=BadSpec)


def test_a_machine_with_other_numbers_is_another_machine():
    phone = load("phone-lpddr5x-ufs4")
    other = with_values(phone, {"tiers.dram.peak_bytes_per_s": 34e9, "engines.npu.ops_per_s.int8": 1e12})
    assert other.tiers["dram"].peak_bytes_per_s.value == 34e9
    assert other.engines["npu"].ops_per_s["int8"].high == 1e12
    assert other.tiers["flash"] == phone.tiers["flash"]
    assert other.sha256 != phone.sha256 == with_values(phone, {}).sha256
    of_dram = ("tiers.dram", "tiers.dram.refresh_j", "tiers.dram.latency_s.low")
    for key in (*of_dram, "tiers.hbm.latency_s", "dtype", "static_w.value"):
        refuses(f"phone-lpddr5x-ufs4: {key} is no number of this machine", with_values, phone, {key: 1.0}, error=BadSpec)
