"""What somebody names as a file is opened only if it is a regular one, and read only as far as was asked for."""

import os

import pytest

from rebasin_cli.registry import regular


def test_a_pipe_is_refused_before_it_is_opened(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    monkeypatch.setattr(os, "open", lambda *given: pytest.fail(f"{given} was opened"))
    for place in (tmp_path / "pipe", tmp_path / "link", tmp_path, "/dev/zero"):
        with pytest.raises(OSError, match="it is no regular file|it is a folder"), regular.opened(place):
            pass
