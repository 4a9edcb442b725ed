"""What somebody names as a file is opened only if it is a regular one, and read no further than was asked."""

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


def test_what_has_become_a_pipe_meanwhile_is_refused_and_closed(tmp_path, monkeypatch):
    opened, descriptors = os.open, []

    def swapped(path, *flags):
        path.unlink()
        os.mkfifo(path)
        descriptors.append(opened(path, *flags))
        return descriptors[0]

    (tmp_path / "file").touch()
    monkeypatch.setattr(os, "open", swapped)
    with pytest.raises(OSError, match="it is no regular file"), regular.opened(tmp_path / "file"):
        pass
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptors[0])


def test_a_file_is_read_whole_or_refused_and_nothing_that_the_system_makes_up(tmp_path):
    (tmp_path / "file").write_bytes(b"12345")
    assert regular.content(tmp_path / "file", 5) == b"12345"
    with pytest.raises(OSError, match="it has 5 bytes, and at most 4 are read"):
        regular.content(tmp_path / "file", 4)
    if os.path.exists("/proc/self/status"):
        with pytest.raises(OSError, match="the system makes it up"):
            regular.content("/proc/self/status")
