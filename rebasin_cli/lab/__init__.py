"""The papers' experiments: one file an experiment, beside it a YAML file with its parameters.

An experiment is a module with

    PAPER: str                  # what it is about: "Git Re-Basin §4, A.3"
    FASTER: str                 # a sentence: what would make it faster
    def run(bench: Bench) -> Outcome

Its docstring's first line is its title, the rest what its page begins with. `bench` (engine/bench.py) has the
parameters, seeds and progress, and keeps what is done for --resume; the outcome is claims, tables and panels
of a picture. A claim is what a paper says of a number and the interval in which that number was measured;
whether it is confirmed is decided by code (engine/claims.py). Nothing here reads options or writes files.
"""

from ..registry import Registry

registry = Registry("lab", "experiment")
