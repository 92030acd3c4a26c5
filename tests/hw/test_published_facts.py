"""What papers and data sheets print, computed from the primitive numbers of the shipped machines: units, clocks, pins, joules."""

import pytest

from tokentape.hw.spec import load
from tokentape.warehouse.models import load as load_model


def pins_bytes_per_s(member, n_channels=1.0):
    return n_channels * member.pins_per_channel.value * member.bit_per_s_per_pin.value / 8


@pytest.mark.parametrize(
    ("name", "int4", "int8", "hb"), [("elmoe3d-4gb", 524.3, 262, 819.2), ("elmoe3d-8gb", 1048.6, 524, 1638.4)]
)
def test_elmoe3d_throughputs_and_bandwidths_from_its_pes_and_banks(name, int4, int8, hb):
    """Table 1: 524 / 262 and 1,048 / 524 TOPS, 819.2 and 1,638.4 GB/s; section 6: 51.2 GB/s per bank."""
    spec = load(name)
    engine, bonded, ext = spec.compute, spec.tiers["hb"], spec.tiers["ext"]
    assert engine.bound_ops_per_s("int4") / 1e12 == pytest.approx(int4, abs=0.05)
    assert engine.bound_ops_per_s("int8") / 1e12 == pytest.approx(int8, abs=0.5)
    assert pins_bytes_per_s(bonded) == pytest.approx(51.2e9)
    assert bonded.n_channels.value == engine.n_units.value, "one bank per PE"
    assert pins_bytes_per_s(bonded, bonded.n_channels.value) == pytest.approx(hb * 1e9)
    assert bonded.peak_bytes_per_s.value == pytest.approx(hb * 1e9)
    assert pins_bytes_per_s(ext, ext.n_channels.value) == ext.peak_bytes_per_s.value == 102.4e9
    assert ext.read_pj_per_bit.value / bonded.read_pj_per_bit.value == pytest.approx(9.02, abs=0.005)


def test_elmoe3d_effective_rates_bound_the_gain_of_a_full_cache():
    """Section 2 of the system: r = EXT / HB is 0.1276 and 0.0638; 1 / r is the gain with everything in HB."""
    for name, ratio in (("elmoe3d-4gb", 0.1276), ("elmoe3d-8gb", 0.0638)):
        tiers = load(name).tiers
        ext, bonded = (tiers[k].peak_bytes_per_s.value * tiers[k].efficiency_frac.value for k in ("ext", "hb"))
        assert ext / bonded == pytest.approx(ratio, abs=5e-5)


def test_elmoe3d_baselines_share_the_lpddr5_and_differ_in_what_computes():
    """Section 7: PIM reads 8 x EXT at 1.64 TOPS, LogicPIM 4 x EXT at 4 x that; NMP owns 2 of 8 channels and 16 of 64 GB."""
    xpu, pim, logic, nmp = (load(f"elmoe3d-xpu{end}") for end in ("", "-pim", "-logicpim", "-nmp"))
    ext = xpu.tiers["ext"]
    assert pim.compute.memory_bytes_per_s.value == 8 * ext.peak_bytes_per_s.value
    assert logic.compute.memory_bytes_per_s.value == 4 * ext.peak_bytes_per_s.value
    assert logic.compute.ops_per_s["int8"].value == 4 * pim.compute.ops_per_s["int8"].value
    for total in ("capacity_bytes", "n_channels", "peak_bytes_per_s"):
        assert sum(getattr(nmp.tiers[t], total).value for t in ("nmp", "ext")) == getattr(ext, total).value
    assert xpu.backing == pim.backing == logic.backing == ""
    bonded = load("elmoe3d-hb-xpu")
    assert (bonded.engines, bonded.tiers) == (load("elmoe3d-8gb").engines, load("elmoe3d-8gb").tiers)


def test_kelle_peak_from_its_array():
    """Section 8: 4.13 INT8 TOPS; 1,024 PEs need two multiply-adds a cycle for it, and 32 accumulations complete it."""
    engine = load("kelle-edram").compute
    assert engine.bound_ops_per_s("int8") == 4.128e12
    assert engine.ops_per_s["int8"].value == pytest.approx(4.13e12)
    assert load("kelle-sram").compute.n_units.value == 24 * 24


def test_kelle_energy_per_byte_and_area_of_table_1():
    """SRAM 185.9 pJ/B, eDRAM 84.8 pJ/B; the SRAM baseline with its 24 x 24 array has the area of the eDRAM chip within 5 %."""
    ours, baseline = load("kelle-edram"), load("kelle-sram")
    assert 8 * ours.tiers["weights"].read_pj_per_bit.value == pytest.approx(185.9, abs=0.05)
    assert 8 * ours.tiers["kv"].read_pj_per_bit.value == pytest.approx(84.8)
    array_mm2 = ours.compute.area_mm2.value * baseline.compute.n_units.value / ours.compute.n_units.value
    assert array_mm2 == pytest.approx(baseline.compute.area_mm2.value, rel=0.005)
    sram_mm2 = sum(baseline.tiers[name].area_mm2.value for name in ("weights", "kv"))
    special_functions_mm2 = 0.07 * ours.area_mm2.value
    assert array_mm2 + sram_mm2 + special_functions_mm2 == pytest.approx(baseline.area_mm2.value, abs=0.01)
    assert baseline.area_mm2.value == pytest.approx(ours.area_mm2.value, rel=0.05)


@pytest.mark.parametrize(("model", "expert_mb", "ms"), [("mixtral-8x7b", 352.3, 0.688), ("mixtral-8x22b", 604.0, 1.180)])
def test_ndp_rate_and_time_per_fp16_mixtral_expert(model, expert_mb, ms):
    """64 arrays of 4 x 4 at 1 GHz: 2.048 TFLOP/s; an expert at 512 GB/s, 16 times that over PCIe Gen4, a quarter per token."""
    spec = load("h100-cxl-ndp")
    ndp, cxl, pcie = spec.engines["ndp"], spec.tiers["cxl"], spec.link("cxl", "hbm")[1]
    expert = load_model(model).geometry
    n_bytes = expert.expert_bytes("fp16")[0]
    assert n_bytes / 1e6 == pytest.approx(expert_mb, abs=0.05)
    assert ndp.bound_ops_per_s("fp16") == ndp.ops_per_s["fp16"].value == 2.048e12
    read_s = n_bytes / cxl.peak_bytes_per_s.value
    assert read_s * 1e3 == pytest.approx(ms, abs=0.0005)
    assert pins_bytes_per_s(pcie) == pcie.peak_bytes_per_s.value == 32e9
    assert n_bytes / pcie.peak_bytes_per_s.value == pytest.approx(16 * read_s)
    assert 2 * expert.expert_params / ndp.bound_ops_per_s("fp16") == pytest.approx(0.25 * read_s)
    assert ndp.memory == "cxl"


def test_slicemoe_peak_and_ratios_of_flash_to_dram():
    """Section 5: 8,192 PEs at 1 GHz are 16.38 TOPS, printed as 16.4; Flash costs 68.7 x the energy at 1 / 10.4 of the rate."""
    spec = load("slicemoe-xpu")
    dram, flash = spec.tiers["dram"], spec.tiers["flash"]
    assert spec.compute.bound_ops_per_s("int8") / 1e12 == pytest.approx(16.38, abs=0.005)
    assert spec.compute.ops_per_s["int8"].value == pytest.approx(16.4e12)
    assert spec.compute.energy_pj_per_op.value == pytest.approx(1 / 3.18, rel=1e-3), "3.18 TOPS/W"
    assert flash.read_pj_per_bit.value / dram.read_pj_per_bit.value == pytest.approx(68.7, abs=0.05)
    assert dram.peak_bytes_per_s.value / flash.peak_bytes_per_s.value == pytest.approx(10.4)


@pytest.mark.parametrize(("name", "dense", "int8"), [("h100", 989.4e12, 1978.9e12), ("a100", 312e12, 624e12)])
def test_gpu_peaks_from_sms_tensor_cores_and_clock(name, dense, int8):
    """Whitepapers: 132 SMs x 2,048 multiply-adds at 1.83 GHz, 108 x 1,024 at 1.41 GHz; 8 bits at twice the rate."""
    engine = load(name).compute
    assert engine.bound_ops_per_s("bf16") == pytest.approx(dense, rel=1e-3)
    assert engine.bound_ops_per_s("fp16") == pytest.approx(dense, rel=1e-3)
    assert engine.bound_ops_per_s("int8") == pytest.approx(int8, rel=1e-3)
    published = {"bf16": dense, "fp16": dense, "int8": int8}
    assert {dtype: engine.ops_per_s[dtype].value for dtype in published} == published


@pytest.mark.parametrize(
    ("name", "bus_bits", "peak"),
    [("h100", 5120, 3.35e12), ("a100", 5120, 2.039e12), ("workstation-rtx4090-pcie4", 384, 1.008e12)],
)
def test_gpu_memory_bandwidth_from_bus_width_and_pin_rate(name, bus_bits, peak):
    spec = load(name)
    memory = spec.tiers[spec.fast]
    assert memory.n_channels.value * memory.pins_per_channel.value == bus_bits
    assert pins_bytes_per_s(memory, memory.n_channels.value) == pytest.approx(peak, rel=1e-3)
    assert memory.peak_bytes_per_s.value == peak


@pytest.mark.parametrize(("name", "total"), [("h100x2", 900e9), ("h100x8", 900e9), ("a100x2", 600e9)])
def test_nvlink_from_its_lanes_counts_one_direction(name, total):
    _, link = load(name).link("hbm", "hbm")
    assert 2 * pins_bytes_per_s(link) == 2 * link.peak_bytes_per_s.value == total


def test_several_gpus_are_one_gpu_times_their_number_in_power_only():
    for name, one in (("h100x2", "h100"), ("h100x8", "h100"), ("a100x2", "a100")):
        many, single = load(name), load(one)
        assert (many.engines, many.tiers, many.measured_as) == (single.engines, single.tiers, single.measured_as)
        for key in ("static_w", "idle_w", "max_w"):
            assert getattr(many, key).value == many.n_devices * getattr(single, key).value


def test_watts_of_hbm_and_lpddr_at_full_rate():
    """HBM2 at 3.9 pJ/bit and 2.039 TB/s is 64 W; 51.2 GB/s at 8 pJ/bit 3.3 W."""
    hbm, phone = load("a100").tiers["hbm"], load("phone-lpddr5x-ufs4").tiers["dram"]
    assert 8e-12 * hbm.read_pj_per_bit.value * hbm.peak_bytes_per_s.value == pytest.approx(64, abs=0.5)
    assert 8e-12 * phone.read_pj_per_bit.value * 51.2e9 == pytest.approx(3.3, abs=0.05)
