"""`python -m tests.ci` plays every case, and writes what it left into docs/ci.md and logs.md."""

import tempfile
from pathlib import Path

from . import cases, page
from .models import pair


def main() -> None:
    rows, logs, passed = {}, {}, None
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        repository = cases.checkout(home / "repository", pair(home / "models"))
        for number, case in enumerate(cases.CASES):
            folder = home / str(number)
            folder.mkdir()
            job = cases.play(case, folder, repository, passed)
            passed = passed or job.server
            rows[case.name], logs[case.name] = cases.row(case, job), cases.log(job)
    page.write(rows, logs)


main()
