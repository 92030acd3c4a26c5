"""The house stays within its budget of lines: a change that needs more takes some away elsewhere."""

from bench import lines


def test_product_and_tests_are_within_their_budget() -> None:
    counted = lines.count()
    assert counted["product"] <= lines.BUDGET
    assert counted["tests"] <= lines.TESTS


def test_every_python_file_of_a_room_counts(tmp_path, monkeypatch) -> None:
    (tmp_path / "hw" / "inner").mkdir(parents=True)
    (tmp_path / "hw" / "a.py").write_text("x = 1\n\n# y\n")
    (tmp_path / "hw" / "inner" / "b.py").write_text("z = 1\n")
    (tmp_path / "hw" / "c.toml").write_text("z = 1\n")
    monkeypatch.setattr(lines, "ROOT", tmp_path)
    assert lines.lines("hw") == 4
