"""Where what is kept lies."""

from pathlib import Path

import pytest

from rebasin_cli.errors import UsageError
from rebasin_cli.runtime import files


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch, tmp_path):
    def none():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", none)
    with pytest.raises(UsageError, match="no home") as caught:
        files.user_cache()
    assert "XDG_CACHE_HOME" in caught.value.hint
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert files.user_cache() == tmp_path / "rebasin"
