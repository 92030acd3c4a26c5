"""What holds of every paper's page: without rows it says what to run, parts stand alone, a full page has every answer."""

import json
import re
from pathlib import Path
from types import ModuleType

import made_up_cxl_ndp as for_cxl_ndp
import made_up_elmoe3d as for_elmoe3d
import made_up_kelle as for_kelle
import made_up_layered as for_layered
import made_up_slicemoe as for_slicemoe
import made_up_systems as for_systems
import pytest
import vl_convert
from made_up import TAPES, Adder, Rows, catalogue, opened, page_of, replay, summaries
from refusing import refuses

from tokentape.dashboards import plot, shell
from tokentape.dashboards.engine.pages import Declared
from tokentape.dashboards.shell import Figure, Page
from tokentape.dashboards.site import compare, cxl_ndp, elmoe3d, experts, kelle, layered, slicemoe, tape
from tokentape.warehouse.load import claims
from tokentape.warehouse.sql import connect

# Page -> rows that may stand alone, figures drawn of them, and the menus there are then.
MADE = {
    kelle: for_kelle, cxl_ndp: for_cxl_ndp, elmoe3d: for_elmoe3d, layered: for_layered, compare: for_systems,
    slicemoe: for_slicemoe,
}  # fmt: skip
_PARTS = json.loads((Path(__file__).parent / "parts.json").read_text())
PARTS: dict[Declared, tuple[ModuleType, dict[str, list[str]]]] = {
    page: (made, _PARTS[page.folder.name]) for page, made in MADE.items()
}
COMMANDS = {
    slicemoe: ("tokentape study slicemoe", "tokentape evaluate --model embedded", "tokentape fidelity --model embedded"),
    layered: ("tokentape study layered_prefill",),
}


def opening_answer(page: Page, figure: Figure) -> str:
    return figure.answers.get("|".join(page.opening.get(name, "") for name in figure.depends), "")


@pytest.mark.parametrize("topic", PARTS, ids=lambda topic: topic.title)
def test_an_empty_warehouse_says_what_to_run(topic: Declared, empty_database: Path) -> None:
    with connect(empty_database) as connection:
        page = topic.page(connection, 16)
    html = shell.render(page, [(topic.file, topic.title)])
    assert html.count('class="missing"') == len(page.figures)
    assert all("Run: tokentape " in figure.missing for figure in page.figures)
    assert all(command in html for command in COMMANDS.get(topic, ()))
    assert "<form" not in html
    assert "table3" not in html


@pytest.mark.parametrize("topic", [elmoe3d, compare], ids=lambda topic: topic.title)  # of the others, test_site.py
def test_a_full_page_has_an_answer_for_what_it_opens_with(topic: Declared) -> None:
    made = PARTS[topic][0]
    tapes = [made.add_tape] if hasattr(made, "add_tape") else []
    page = page_of(topic, *made.EVERYTHING, *tapes)
    assert [figure.name for figure in page.figures if figure.chart is None or not opening_answer(page, figure)] == []


@pytest.mark.parametrize(("topic", "part"), [(topic, part) for topic, (_, parts) in PARTS.items() for part in parts])
def test_each_part_stands_alone(topic: Declared, part: str) -> None:
    """And its menus with it: on the Kelle page there is a reading to choose although the headline is missing."""
    made, parts = PARTS[topic]
    adders: list[Adder] = [getattr(made, f"add_{name}") for name in part.split()]
    page = page_of(topic, *adders)
    drawn = [figure for figure in page.figures if figure.chart is not None]
    html = shell.render(page, [(topic.file, topic.title)])
    assert [" ".join(figure.name for figure in drawn), " ".join(control.name for control in page.controls)] == parts[part]
    assert html.count('class="missing"') == len(page.figures) - len(drawn)
    silent = [figure.name for figure in drawn if not opening_answer(page, figure)]
    assert silent == (["lanes"] if "lanes" in part else [])  # which the page says of a model that was not put on the clock


@pytest.mark.parametrize("topic", [cxl_ndp, elmoe3d, layered, slicemoe], ids=lambda topic: topic.title)
def test_no_number_of_the_paper_is_typed_into_the_page(topic: Declared) -> None:
    """Published numbers with two decimals or more that would betray a copy. Readings of the Kelle page quote two."""
    folder = topic.folder
    stated = {f"{row['value']:g}" for row in claims().to_pylist() if row["paper"] == folder.name and row["value"] is not None}
    telling = {text for text in stated if len(text.partition(".")[2]) >= 2 and float(text) > 1}
    source = "".join(path.read_text() for path in folder.rglob("*.*") if path.suffix != ".pyc")
    assert telling
    assert [text for text in telling if f" {text}" in source or f"({text}" in source] == []


def test_runs_are_compared_by_machine_with_why_some_cannot_be_had() -> None:
    with opened(for_systems.add_cells, for_systems.add_tape) as connection:
        page, cells = compare.page(connection, 16), compare.asked(connection)("cells").to_dicts()
    said = {figure.name: figure.answers for figure in page.figures}
    terms = f"{for_systems.TRACE}|{for_systems.TERMS}"
    here, phone = (f"{terms}|{machine}|25 %" for machine in ("h100-cxl-ndp", "phone-lpddr5x-ufs4"))
    assert said["frontier"][here] == (
        "With room for 25 % of the experts on h100-cxl-ndp, few_bits is fastest: 5.68 ms and 227 mJ a token, 1.60 × as fast as "
        "LRU; lru_offload: 9.09 ms and 455 mJ a token; its bound, which sees the future: 7.58 ms and 379 mJ a token; "
        "with all experts in the fast tier: 2.27 ms and 114 mJ a token."
    )
    assert said["everything"][phone] == f"3 methods, 1 to compare them with. No no_offload here: {for_systems.REASON}."
    assert said["quality"][here].startswith("few_bits: perplexity × 1.250 at 5.68 ms a token")
    assert said["parts"][here].startswith("Time: of LRU's, 60 % goes to experts fetched and 40 % to weights outside")
    assert "h100-cxl-ndp few_bits is fastest with 25 % (1.60 × LRU's speed at most)" in said["winners"][terms]
    assert said["resources"][here].startswith("Most is asked of pcie (link): 50 % of its run by")  # of the tier of that name 20 %
    for cell in cells:  # not beaten: by nobody of the same place in both time and energy
        rivals = [o for o in cells if o["machine"] == cell["machine"] and o["role"] in ("a method", "LRU")]
        beaten = any(o["token_ms"] < cell["token_ms"] and o["mj"] < cell["mj"] for o in rivals)
        assert cell["best_token_ms"] == (cell["role"] in ("a method", "LRU") and not beaten), cell["method"]
    carried = page.data["cells"].select("token_ms", "gain", "mj").rows()  # with 4 digits 1.1348 was shown as 1.14
    assert carried == [pytest.approx((cell["token_ms"], cell["gain"], cell["mj"]), rel=1e-6) for cell in cells]
    other = page_of(compare, for_systems.add_cells, for_systems.add_tape, for_systems.add_oracle).figures[0]
    assert dict(other.answers)[here] == said["frontier"][here], "what LRU might hit is Belady's, not another system's bound"
    lone = page_of(compare, for_systems.add_cells, for_systems.add_tape, for_systems.add_lone)
    traces = [row["trace"] for row in lone.choices if "trace" in row]
    assert list(dict.fromkeys(traces)) == [for_systems.TRACE, "alone"], "the tape that most systems ran on comes first"
    with opened(for_systems.add_variants, for_systems.add_tape) as connection:
        roles = {cell["method"]: (cell["role"], cell["gain"]) for cell in compare.asked(connection)("cells").to_dicts()}
    assert roles == {"lru_offload residency=lru": ("LRU", 1.0), "lru_offload residency=lfu": ("a method", 0.5)}
    with opened(for_systems.add_versions, for_systems.add_tape) as connection:
        times = sorted(cell["token_ms"] for cell in compare.asked(connection)("cells").to_dicts())
    # 24 ms: the median of 50 and 33.3 tokens/s, as `tokentape compare` has it, and not of 20 and 30 ms
    assert times == pytest.approx([24.0, 80.0, 160.0]), "a changed file is another method; of a seed made twice the newer counts"
    (answer,) = page_of(compare, for_systems.add_points).figures[-1].answers.values()
    assert answer == "one machine: both at 75% is fastest, 9.00 tokens/s."


def test_tapes_of_prompts_alone_open_with_prompts() -> None:
    def add(rows: Rows) -> None:
        rows["traces"].append(catalogue(TAPES[0]))
        summaries(TAPES[0], rows)
        for name in ("popularity", "locality", "profiles"):
            rows[name] = [row for row in rows[name] if row.get("phase") != "decode"]

    page = page_of(tape, add)
    assert page.opening["phase"] == "prefill"
    assert "of the selections in prefill" in opening_answer(page, next(of for of in page.figures if of.name == "popularity"))


def test_a_policy_of_ones_own_is_named_without_its_folder_unless_two_files_share_the_rest() -> None:
    def add(rows: Rows) -> None:
        for n, policy in enumerate(("/a/my.py:Mine", "/a/two.py:Two", "/b/two.py:Two")):
            replay(TAPES[0], "lru", "phone-lpddr5x-ufs4", "global", 0.5, 0, str(n), rows)
            rows["replays"][-1]["policy"] = policy

    with opened(add) as connection:
        names = compare.asked(connection)("cells")["method"]
    assert sorted(names) == ["/a/two.py:Two, global", "/b/two.py:Two, global", "my.py:Mine, global"]


def test_of_equals_lru_is_named_and_every_run_counts_in_what_a_method_takes() -> None:
    page = page_of(compare, for_systems.add_equals, for_systems.add_tape)
    said = {figure.name: dict(figure.answers) for figure in page.figures}
    small, here = (f"{for_systems.TRACE}|{for_systems.TERMS}|h100-cxl-ndp|{room}" for room in ("10 %", "25 %"))
    assert said["frontier"][here].endswith(" h100-cxl-ndp, lru_offload is fastest: 10.0 ms and 500 mJ a token.")
    assert said["parts"][here].startswith("Time: of LRU's, 60 % goes to experts fetched and 40 %")  # once
    assert "equal takes 70 % of it all" in said["parts"][here], "a run without a part takes nothing of it"
    assert "No lru_offload" not in said["everything"][here]
    assert said["everything"][small].endswith(f"No lru_offload here: {for_systems.REASON}.")


def picture(page: Page, figure: str, **chosen: str) -> str:
    """A figure as SVG, with what it says to who cannot see it."""
    spec = plot.spec_of(page, next(one for one in page.figures if one.name == figure), chosen)
    return str(vl_convert.vegalite_to_svg(spec, vl_version=shell.vega_version()))


def test_what_is_zero_is_seen_on_a_logarithmic_axis_and_the_line_stops() -> None:
    drawn = picture(page_of(compare, for_systems.add_points), "composed")
    assert len(re.findall(r'"x: 50%; line: alone; [^"]*fetched \(MB/output token\): 0;', drawn)) == 1


def test_a_picture_is_of_what_is_chosen_with_the_menus_that_follow_and_its_legend_has_those_policies() -> None:
    ran = (("lru", "LRU", "phone-lpddr5x-ufs4"), ("fifo", "FIFO", "workstation-rtx4090-pcie4"))

    def add(rows: Rows) -> None:
        for tape_of, (policy, _, machine) in zip(TAPES, ran, strict=False):
            rows["traces"].append(catalogue(tape_of))
            replay(tape_of, policy, machine, "global", 0.5, 0, policy, rows)

    page = page_of(experts, add)
    for tape_of, (_, name, _) in zip(TAPES, ran, strict=False):
        for figure in ("hits", "cost"):
            assert re.findall(r">(?:[^<>]*: )?(LRU|FIFO)<", picture(page, figure, trace=tape_of.trace_id)) == [name]
    refuses(r"choose phone-lpddr5x-ufs4 [(]with trace=", picture, page, "cost", hardware="workstation-rtx4090-pcie4")
    lone = page_of(compare, for_systems.add_cells, for_systems.add_tape, for_systems.add_lone)
    refuses("Nothing to draw: no method ran beside an LRU", picture, lone, "parts", trace="alone")
