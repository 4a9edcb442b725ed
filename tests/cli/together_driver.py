"""A rank of test_together.py: commands one after the other, and what each ended with."""

import contextlib
import io
import json
import os
import sys

from rebasin_cli.__main__ import main

os.chdir(sys.argv[1])
rank, told = os.environ["RANK"], {}
for name, *line in json.loads(sys.argv[2]):
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stderr(err), contextlib.redirect_stdout(out):
        try:
            main(line)
        except SystemExit as stop:
            code = stop.code or 0
    told[name] = [code, out.getvalue(), err.getvalue()]
with open(f"rank{rank}.json", "w") as file:
    json.dump(told, file)
