"""What a run left, as outputs of the action; `python -I told.py FOLDER >> "$GITHUB_OUTPUT"`.

FOLDER was new when the run began: what lies in it is of this run. Besides its documents, `reports` gets a
copy of what its steps wrote, but no weights (in `steps`, where it is called like a document); `files` are all
that it wrote, where it ended well, a line each. Where the run left no result, this says so, since nobody
else can.
"""

import json
import os
import shutil
import sys
import uuid

WEIGHTS = (".safetensors", ".safetensors.index.json", ".npz", ".bin", ".pt", ".pth", ".ckpt")
OWN = ("result.json", "junit.xml", "summary.md", "comparison.md")  # no output of a recipe passes for these
IDLE = ("unchanged", "not run")
SILENT = (
    "rebasin left no result: it was killed, mostly for its memory (exit code 137), could not begin, or did "
    "not know an argument. What was done is kept: running again goes on"
)
JUNIT = """\
<?xml version="1.0" encoding="UTF-8"?>
<testsuites name="rebasin" tests="1" failures="0" errors="1">
  <testsuite name="rebasin run" tests="1" failures="0" errors="1" skipped="0">
    <testcase classname="rebasin" name="result"><error type="NoResult" message="{message}" /></testcase>
  </testsuite>
</testsuites>
"""


def result(path):
    """The JSON of the run; None where there is none, as after kill -9."""
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        return found if isinstance(found, dict) else None
    except (OSError, ValueError):
        return None


def copied(names, folder):
    """Copies of these files in a folder, under their names below this one."""
    for name in names:
        inside = os.path.relpath(name)
        inside = os.path.basename(name) if inside.startswith(os.pardir) or os.path.isabs(inside) else inside
        place = os.path.join(folder, inside)
        if inside.lower() in OWN:  # a step's: the run's own stays what it is
            place = os.path.join(folder, "steps", inside)
        if os.path.isfile(name) and not os.path.islink(name):
            os.makedirs(os.path.dirname(place), exist_ok=True)
            shutil.copyfile(name, place)


def main(folder):
    reports = os.path.join(folder, "reports")
    told = result(os.path.join(reports, "result.json"))
    steps = (told or {}).get("steps") or []
    written = [name for step in steps for name in step.get("outputs", {})]
    written += [name for name in (told or {}).get("written") or [] if isinstance(name, str)]
    inside = os.path.realpath(folder) + os.sep  # its documents are there already
    written = [name for name in dict.fromkeys(written) if not os.path.realpath(name).startswith(inside)]
    written = [name for name in written if "\n" not in name and "\r" not in name]
    copied([name for name in written if not name.endswith(WEIGHTS)], reports)
    began = os.path.exists(os.path.join(folder, "began"))
    if began and told is None:
        print(f"::error title=rebasin::{SILENT}", file=sys.stderr)
        with open(os.path.join(reports, "summary.md"), "a", encoding="utf-8") as file:
            file.write(f"## rebasin run: no result\n\n{SILENT}.\n")
        with open(os.path.join(reports, "junit.xml"), "w", encoding="utf-8") as file:
            file.write(JUNIT.format(message=SILENT))
    changed = began if told is None else any(step["status"] not in IDLE for step in steps)
    code = (told or {}).get("exit_code", "")
    place = os.environ["PLACE"]
    files = [os.path.join(place, name) for name in written if os.path.isfile(name)] if code == 0 else []
    end = f"end-{uuid.uuid4()}"
    print(f"changed={str(changed).lower()}")
    print(f"exit-code={code}")
    print(f"reports={reports if os.listdir(reports) else ''}")
    for name, file in (("result", "result.json"), ("junit", "junit.xml"), ("summary", "summary.md")):
        path = os.path.join(reports, file)
        print(f"{name}={path if os.path.isfile(path) and os.path.getsize(path) else ''}")
    print("\n".join([f"files<<{end}", *files, end]))


main(sys.argv[1])
