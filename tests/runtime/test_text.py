"""What is printed: nothing in a name commands a terminal or a CI system, or fills a log."""

import io
import sys

import pytest

from rebasin_cli.runtime.streams import Guarded, guarded
from rebasin_cli.runtime.text import LONGEST, clean, in_a_line, line

HOSTILE = {
    "the clipboard (OSC 52)": "\x1b]52;c;cm0gLXJm\x07",
    "a title": "\x1b]0;title\x07",
    "colours": "\x1b[8mhidden\x1b[0m",
    "a cleared screen": "\x1b[2J\x1b[H",
    "one byte for ESC [": "\x9b2J",
    "a line forged by CR": "weights\rrebasin: all is well",
    "a line forged by LF": "weights\nrebasin: all is well",
    "backspaces": "evil\b\b\b\bgood",
    "another direction": "safe\u202egnp.exe",
    "an isolate": "\u2066a\u2069",
    "a line separator": "a\u2028b",
    "NUL": "a\0b",
    "DEL": "a\x7fb",
    "half a surrogate": "a\udcffb",
    "no character": "a\ufffeb",
}


@pytest.mark.parametrize("what", HOSTILE)
def test_nothing_in_a_name_commands_a_terminal(what):
    shown = line(HOSTILE[what])
    assert shown.isprintable() and shown.encode("utf-8") and shown != HOSTILE[what]
    assert clean(shown) == shown == line(shown)


@pytest.mark.parametrize(
    "text", ["layers.0.weight", "schöne Gewichte/模型.safetensors", "λ = ½ → 1", "", "  a  "]
)
def test_what_is_harmless_stays(text):
    assert line(text) == clean(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("::error file=a::forged", "\\::error file=a::forged"),
        ("  ::set-output name=x::y", "  \\::set-output name=x::y"),
        ("##[error]forged", "# #[error]forged"),
        ("a ##vso[task.setvariable]b", "a # #vso[task.setvariable]b"),
        ("layers::weight", "layers::weight"),
        ("#1", "#1"),
    ],
)
def test_no_line_is_a_command_to_a_ci_system(text, shown):
    assert line(text) == shown


def test_a_name_of_fifty_megabytes_is_shown_by_its_ends():
    shown = line("a" * 50_000_000 + "end")
    assert len(shown) < LONGEST and shown.startswith("aaa") and shown.endswith("aend")
    assert "49,996,337 characters" in shown
    assert line("a" * LONGEST) == "a" * LONGEST


def test_an_error_of_a_worker_is_one_line():
    told = (
        "Caught ValueError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n"
        '  File "/home/me/loader.py", line 7, in __getitem__\n    raise ValueError\n'
        "ValueError: no picture 12\n"
    )
    assert in_a_line(ValueError(told)) == "ValueError: no picture 12, at loader.py:7"


def test_an_error_says_its_type_message_and_place():
    def fails():
        raise KeyError("a\nb")

    class Silent(Exception):
        def __str__(self):
            raise RuntimeError

    try:
        fails()
    except KeyError as error:
        assert in_a_line(error).startswith("KeyError: 'a\\nb', at test_text.py:")
    assert in_a_line(Silent()) == "Silent"


def test_only_colours_of_our_own_go_through_a_stream():
    inner = io.StringIO()
    Guarded(inner, needed=True).write("\x1b[1mbold\x1b[0m\x1b]52;c;x\x07\r\u202e\x9b\n\t✓")
    assert inner.getvalue() == "\x1b[1mbold\x1b[0m�]52;c;x����\n\t✓"
    inner = io.StringIO()
    Guarded(inner, needed=False, cursor=True).write("\r\x1b[2K\x1b[1A\x1b[?25l\x1b]0;t\x07")
    assert inner.getvalue() == "\r\x1b[2K\x1b[1A\x1b[?25l�]0;t�"


class Left(io.StringIO):
    def write(self, text):
        raise BrokenPipeError


def test_a_stream_that_is_left_goes_on_and_remembers():
    stream = Guarded(Left(), needed=True)
    assert stream.write("a\n") == 2 and stream.broken
    stream.writelines(["b", "c"])
    with pytest.raises(OSError):
        failing = Left()
        failing.write = lambda text: (_ for _ in ()).throw(OSError(28, "No space left"))
        Guarded(failing, needed=True).write("a")


def test_the_streams_are_what_they_were_afterwards(monkeypatch):
    monkeypatch.setattr(sys, "stdout", Left())
    before = sys.stdout, sys.stderr
    with pytest.raises(SystemExit) as left, guarded():
        print("a")
    assert left.value.code == 141 and (sys.stdout, sys.stderr) == before
    with pytest.raises(SystemExit) as left, guarded():
        print("a")
        sys.exit(1)
    assert left.value.code == 1
