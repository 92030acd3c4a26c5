"""Studies: the shipped ones parse; a wrong file is one clear line."""

from pathlib import Path

import pytest
from refusing import refuses
from tiny_tape import STUDY

from tokentape.flows import study
from tokentape.flows.systems import grids

MY_CACHE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "my_cache.py"
GOOD = STUDY.replace('ufs4"', 'ufs4", "machines/mine.toml"')


def write(tmp_path: Path, text: str) -> str:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return str(path)


def test_shipped_studies_parse() -> None:
    assert "baselines" in grids()
    for name in grids():
        assert study.load(name).name == name


def test_own_study_is_named_after_its_file_and_its_paths_are_relative_to_it(tmp_path: Path) -> None:
    loaded = study.load(write(tmp_path, GOOD))
    assert loaded.name == "mine"
    assert loaded.hardware == ("phone-lpddr5x-ufs4", str(tmp_path / "machines/mine.toml"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (GOOD.replace("scopes", "scopse"), "scope"),
        (GOOD.replace('scopes = ["global"]', ""), "scopes"),
        (GOOD.replace('"lru"', '"lur"'), "did you mean 'lru'"),
        (GOOD + "params = { profile_frac = 0.1 }", "profile_frac"),
        ("capacities = [", "not TOML"),
        (GOOD + "params = { half_life_passes = nan }", r"mine\.toml: policies\.0\.params\.half_life_passes is nan"),
        ('name = "adhoc"\n' + GOOD, 'give yours another, name = "my-adhoc"'),
    ],
)
def test_wrong_files_name_the_field(tmp_path: Path, text: str, says: str) -> None:
    refuses(says, study.load, write(tmp_path, text))


def test_two_policies_of_one_name_are_refused(tmp_path: Path) -> None:
    """Results call both by it, and of two that differ in nothing else the newer one replaces the other."""
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text(MY_CACHE.read_text())
    text = GOOD + '[[policies]]\nname = "a/mine.py:DecayedLFU"\n'
    assert len(study.load(write(tmp_path, text + text[len(GOOD) :] + "params = { bonus_events = 1.0 }")).policies) == 3
    refuses("both go by DecayedLFU", study.load, write(tmp_path, text + '[[policies]]\nname = "b/mine.py:DecayedLFU"'))


def test_patterns_pick_traces() -> None:
    ids = ["embedded-math-1", "embedded-code-2", "qwen-3"]
    assert study.matching(("*",), ids) == ids
    assert study.matching(("*math*", "qwen"), ids) == ["embedded-math-1", "qwen-3"]
    refuses("there are embedded-math-1", study.matching, ("gemma",), ids)
    refuses("store is empty", study.matching, ("*",), [])
