"""The files of a report: all or nothing, and each once."""

import pytest

from rebasin_cli.commands.verbs.report_files import Written, removed_on_failure, write_files
from rebasin_cli.errors import OutputExists, UsageError


def test_new_files_and_folders_go_where_the_block_fails_and_old_ones_stay(tmp_path):
    (tmp_path / "old").write_text("old")
    deep = tmp_path / "x" / "y" / "new"
    with pytest.raises(ValueError), removed_on_failure(tmp_path / "old", deep):
        deep.parent.mkdir(parents=True)
        deep.write_text("new")
        raise ValueError
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


def test_files_of_one_folder_are_replaced_together_or_not_at_all(tmp_path):
    first, second = tmp_path / "report.md", tmp_path / "report.html"
    first.write_text("old")
    second.mkdir()
    with pytest.raises(UsageError):
        write_files([(first, "new"), (second, "new")], force=True)
    assert first.read_text() == "old" and len(list(tmp_path.iterdir())) == 2
    second.rmdir()
    write_files([(first, "new"), (second, "new")], force=True)
    assert [path.read_text() for path in (first, second)] == ["new", "new"]


def test_every_format_once(tmp_path):
    wanted = Written(tmp_path, {"json": tmp_path / "report.json"}).destinations()
    assert [path.name for _, path in wanted].count("report.json") == 1 and len(wanted) >= 5
    with pytest.raises(UsageError, match="cannot be both the json and the html"):
        Written(None, {"json": tmp_path / "r", "html": tmp_path / "r"}).destinations()
    (tmp_path / "report.md").write_text("")
    with pytest.raises(OutputExists):
        Written(tmp_path).destinations()
    own = Written(tmp_path / "new", {"png": tmp_path / "p.png"}).destinations({"json": "plane.json"})
    assert own == [("png", tmp_path / "p.png"), ("json", tmp_path / "new" / "plane.json")]
