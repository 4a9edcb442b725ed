"""`${NAME}` in a recipe, and what of it may be seen: no secret gets into a text that is written or shown.

A variable whose name says that it is a secret is not put into the recipe at all, nor one that holds an
address with a login or a signature. Only in the address of a download does its name stay as it is written,
until the very moment at which the address is asked for; records hold the name. Addresses are shown without
what signs them: a password before the host, and the query.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, MutableMapping

VARIABLE = re.compile(r"\$\$\{|\$\{(?P<name>[A-Za-z_]\w*)(?::-(?P<default>[^}]*))?\}|\$\{(?P<bad>[^}]*)\}?")
_SECRET = re.compile(
    r"secret|token(?!i[sz])|key|passw|passphrase|passcode|credential|auth(?!or(?!i[sz]))|bearer|cookie|private"
)
_PART = re.compile(
    r"(?:^|[_\d])(?:pat|sas|jwt|pw)(?:$|[_\d])|(?<!com)(?<!by)(?<!sur)pass(?:$|[_\d])|"
    r".(?<!old)pwd(?:$|[_\d])"
)
_ADDRESS = re.compile(
    r"(?P<scheme>[A-Za-z][\w+.-]{0,20}://)(?P<user>[^\s/?#]*@)?(?P<rest>[^\s?#]*)(?P<query>[?#]\S+)?"
)


class Had(Mapping[str, str]):
    """An environment that notes in `seen` which of its variables were asked for, as they may be seen.

    No secret is noted, whoever looks at it.
    """

    def __init__(self, environment: Mapping[str, str], seen: MutableMapping[str, str]):
        self.environment, self.seen = environment, seen

    def __getitem__(self, name: str) -> str:
        value = self.environment[name]
        if not is_secret(name):
            self.seen[name] = public(value)
        return value

    def __contains__(self, name: object) -> bool:
        return name in self.environment

    def __iter__(self) -> Iterator[str]:
        return iter(self.environment)

    def __len__(self) -> int:
        return len(self.environment)


def is_secret(name: str) -> bool:
    """Whether a variable's name says that nobody may see its value: HF_TOKEN, api_key, DB_PASSWORD."""
    word = name.lower()
    return bool(_SECRET.search(word) or _PART.search(word))


def holds_login(value: str) -> bool:
    """Whether what a variable holds is, or has in it, an address that is not shown as it is."""
    return public(value) != value


def refusal(name: str, allowed: Collection[str] | None, value: str = "") -> str | None:
    """Why this variable may not be put into a text of a recipe; None where it may.

    `allowed` are the names that the command line gives to a stranger's recipe.
    """
    if is_secret(name):
        if allowed is not None:
            return f"${{{name}}} is a secret by its name, and with --untrusted a recipe is given none"
        return (
            f"${{{name}}} is a secret by its name, and what a recipe says is written into files and logs: it "
            "may stand in the url: of an input alone; call what is no secret otherwise"
        )
    if allowed is not None and name not in allowed:
        given = f"those of --allow-env ({', '.join(sorted(allowed))})" if allowed else "none"
        return f"${{{name}}}: with --untrusted a recipe reads {given}; --allow-env {name} gives it this one"
    if holds_login(value):
        return (
            f"${{{name}}} holds an address with a login, or with a query, which may be a signature, and "
            "what a recipe says is written into files and logs: it may stand in the url: of an input alone"
        )
    return None


def told(text: str, environment: Mapping[str, str]) -> str:
    """An address as it is asked for: with the secrets that it names."""
    return VARIABLE.sub(lambda found: environment.get(found["name"] or "", found[0]), text)


def public(text: str) -> str:
    """A text with every address in it as it may be seen: without user, password and query."""
    return _ADDRESS.sub(_shown, text) if "://" in text else text


def _shown(found: re.Match[str]) -> str:
    user = "***@" if found["user"] else ""
    return f"{found['scheme']}{user}{found['rest']}" + ("?***" if found["query"] else "")
