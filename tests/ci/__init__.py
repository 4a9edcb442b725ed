"""CI servers, played: the files that the project has for them are read as they stand, and their lines run.

`expressions.py` is the part of GitHub's `${{ }}` that these files use; `runner.py` plays a job and the
server's caches and artefacts; `cases.py` are the ways in which a job ends, and the rows that docs/ci.md has
of them (`python -m tests.ci` writes them there). What a server itself does, no test here can tell.
"""
