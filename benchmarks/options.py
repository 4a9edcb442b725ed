"""How many options a person meets, by command: `python benchmarks/options.py`.

An option is one of its command's own, or one that means the same everywhere, or one of a method; the second
and the third kind are told once, and counted once.
"""

from __future__ import annotations

from rebasin_cli.registry import operations
from rebasin_cli.registry.operations import METHODS


def counts() -> dict[str, int]:
    """The options by command, then what is told once."""
    found = {}
    for name, operation in operations.every().items():
        own = [one for one in operation.options if not (one.positional or one.everywhere)]
        found[name] = sum(one.within != "options" for one in own)
    methods = {one.flag for options in METHODS.every_option().values() for one in options}
    return found | {"of every command": len(operations.everywhere()), "of methods": len(methods)}


if __name__ == "__main__":
    told = counts()
    for name, count in sorted(told.items(), key=lambda item: -item[1]):
        print(f"{count:5}  {name}")
    print(f"{sum(told.values()):5}  in all")
    every = [one for operation in operations.every().values() for one in operation.options]
    print(
        f"{sum(not (one.positional or one.within == 'options') for one in every):5}  counted at every command"
    )
    print(f"{sum(not one.positional for one in every):5}  … with those of methods")
