"""What code of the user's changes of the process is ours again after it, and its own the next time."""

import os
import sys

import pytest

from rebasin_cli.errors import NetworkError
from rebasin_cli.registry import user_code
from rebasin_cli.registry.surroundings import at_home, with_us


def test_code_of_the_users_has_a_working_directory_of_its_own(tmp_path, monkeypatch):
    (tmp_path / "theirs").mkdir()
    monkeypatch.chdir(tmp_path)
    with at_home():
        for fails in (False, True):
            with pytest.raises(NetworkError) if fails else user_code("it fails"), user_code("it fails"):
                assert os.getcwd() == str(tmp_path / "theirs" if fails else tmp_path)
                os.chdir(tmp_path / "theirs")
                if fails:
                    raise ValueError
            assert os.getcwd() == str(tmp_path)
        os.chdir("theirs")  # a hook, that nobody is around
        with_us()
        assert os.getcwd() == str(tmp_path)
    with at_home(), user_code("it fails"):  # another command begins anew
        assert os.getcwd() == str(tmp_path)


def test_streams_that_it_replaces_are_ours_again():
    streams = sys.stdout, sys.stderr
    with at_home(), user_code("it fails"):
        sys.stdout, sys.stderr = None, open(os.devnull)
        sys.stderr.close()
    assert (sys.stdout, sys.stderr) == streams
