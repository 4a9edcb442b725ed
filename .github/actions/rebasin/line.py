"""The command line of the action's inputs, each word ended by a zero byte; `python -I line.py > FILE`."""

import os
import shlex
import sys


def words(text: str) -> list[str]:
    """The words of `arguments`: parted by spaces and ends of lines, held together by quotes, nothing more."""
    found = shlex.shlex(text, posix=True)
    found.whitespace_split, found.commenters, found.escape = True, "", ""
    try:
        return list(found)
    except ValueError:
        sys.exit("::error title=rebasin::arguments: a quote is not closed")


def line(given) -> list[str]:
    found = ["run", given["RECIPE"]]
    if given["TIME_LIMIT"]:
        found += ["--time-limit", given["TIME_LIMIT"]]
    if given["UNTRUSTED"] == "true":
        found += ["--untrusted", "--allow-env", "BASELINE"]
    return found + words(given["ARGUMENTS"])


sys.stdout.buffer.write(b"".join(os.fsencode(word) + b"\0" for word in line(os.environ)))
