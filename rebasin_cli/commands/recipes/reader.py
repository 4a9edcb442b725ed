"""A recipe's text as values, each with its path and its line; `${NAME}` and `--set` are settled here.

YAML is read strictly: keys stand once, anchors are not merged, only true and false are switches, and what
looks like a date is text. Every problem is collected before anything is said. Secrets are not put in.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, replace
from typing import Any

import yaml

from ...errors import UsageError
from ...registry.options import real, whole
from ...spec.patterns import natural

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
# What a step says beside its command, and what each holds.
OF_A_STEP = {
    "name": "what other steps call its output",
    "depends": "further files that its result depends on",
    "time_limit": "how long it may take, such as 90s, 20m or 2h",
}
MAX_BYTES, MAX_VALUES, MAX_DEPTH = 1 << 20, 20_000, 20
_KINDS = {"tag:yaml.org,2002:int": whole, "tag:yaml.org,2002:float": real}


@dataclass(frozen=True)
class Value:
    """A scalar, a list of `Value` or a dict of them; `path` is as a reader says it: `steps[1].merge.out`.

    `own` where the command line says it, and not the recipe.
    """

    value: Any
    path: str
    where: str  # "line 12", or "--set steps.a.method=wm"
    own: bool = False

    def items(self) -> Iterator[tuple[str, Value]]:
        return iter(self.value.items())

    @property
    def is_map(self) -> bool:
        return isinstance(self.value, dict)

    @property
    def is_list(self) -> bool:
        return isinstance(self.value, list)

    def plain(self) -> Any:
        """The same without paths and lines."""
        if self.is_map:
            return {key: value.plain() for key, value in self.items()}
        return [value.plain() for value in self.value] if self.is_list else self.value


class Problems(list[str]):
    """What is wrong with a recipe, a line each: where, path, what; a default wrong in all steps is one."""

    def add(self, at: Value, what: str) -> None:
        told = public(f"{at.where}: {at.path + ': ' if at.path else ''}{what}")
        if told not in self:
            self.append(told)

    def in_order(self) -> list[str]:
        """By their lines."""
        return sorted(self, key=lambda text: natural(text.partition(":")[0]))


def read(
    text: str,
    environment: Mapping[str, str],
    problems: Problems,
    *,
    allowed: Collection[str] | None = None,
) -> Value:
    """The values of a recipe. Raises UsageError for what is no YAML mapping at all.

    `allowed` are the variables that it may have; None: any that is no secret.
    """
    if len(text) > MAX_BYTES:
        raise UsageError(f"a recipe of more than {MAX_BYTES:,} characters", hint="A recipe names files")
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark is not None else ""
        reason = " ".join(str(error).split())
        hint = "Within { } a ${NAME} stands in quotes" if "${" in text else None
        raise UsageError("the recipe is not YAML", problems=[where + reason[:300]], hint=hint) from None
    if not isinstance(root, yaml.MappingNode):
        raise UsageError(
            "this is no recipe: expected keys such as `steps:`", hint="docs/recipes.md shows one"
        )
    return _Reader(environment, problems, allowed=allowed).value(root, "", 0)


class _Reader:
    def __init__(
        self,
        environment: Mapping[str, str],
        problems: Problems,
        where: str | None = None,
        *,
        allowed: Collection[str] | None = None,
    ):
        self.environment, self.problems, self.where, self.count = environment, problems, where, 0
        self.allowed = allowed

    def place(self, node: yaml.Node) -> str:
        return self.where or f"line {node.start_mark.line + 1}"

    def value(self, node: yaml.Node, path: str, depth: int) -> Value:
        self.count += 1  # an alias counts each time that it is followed
        if self.count > MAX_VALUES or depth > MAX_DEPTH:
            raise UsageError(f"a recipe of more than {MAX_VALUES:,} values, or {MAX_DEPTH} levels deep")
        at = Value(None, path, self.place(node), own=self.where is not None)
        if isinstance(node, yaml.MappingNode):
            return replace(at, value=self._map(node, at, depth))
        if isinstance(node, yaml.SequenceNode):
            below = enumerate(node.value, start=1)
            return replace(at, value=[self.value(item, f"{path}[{n}]", depth + 1) for n, item in below])
        return replace(at, value=self._scalar(node, at) if isinstance(node, yaml.ScalarNode) else None)

    def _map(self, node: yaml.MappingNode, at: Value, depth: int) -> dict[str, Value]:
        found: dict[str, Value] = {}
        for key, below in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else None
            path = f"{at.path}.{name}" if at.path else str(name)
            here = Value(None, path, self.place(key))
            if name is None:
                self.problems.add(replace(here, path=at.path), "a key is one word")
            elif name in found:
                self.problems.add(here, f"stands here and in {found[name].where}")
            elif key.tag == "tag:yaml.org,2002:merge":
                self.problems.add(here, "anchors are not merged; write what steps share under `defaults:`")
            else:
                found[name] = self.value(below, path, depth + 1)
        return found

    def _scalar(self, node: yaml.ScalarNode, at: Value) -> Any:
        text, plain = node.value, node.style is None
        if plain and node.tag == "tag:yaml.org,2002:null":
            return None
        if plain and text in ("true", "false"):
            return text == "true"
        if plain and node.tag in _KINDS:
            try:
                return _KINDS[node.tag](text)
            except ValueError:  # 0x1f, 1:30, 0_05, 5,000 digits: what it means is for its option
                return text
        return self._expanded(text, at)

    def _expanded(self, text: str, at: Value) -> str:
        address, kept = at.path.endswith(".url"), 0

        def held(name: str) -> str:
            """What is looked at, too: of an address records hold what may be seen."""
            return "" if address and self.allowed is None else self.environment.get(name, "")

        def variable(found: re.Match[str]) -> str:
            nonlocal kept
            if found[0] == "$${":
                return "${"
            if found["name"] is None:
                self.problems.add(at, f"${{{found['bad']}}} is no name of a variable; $${{ stands for ${{")
            elif address and self.allowed is None and is_secret(found["name"]):
                kept += 1  # it is put in when the address is asked for
                if found["name"] not in self.environment:
                    self.problems.add(at, f"the environment has no {found['name']}")
                return f"${{{found['name']}}}"
            elif (why := refusal(found["name"], self.allowed, held(found["name"]))) is not None:
                self.problems.add(at, why)
            elif found["name"] in self.environment:
                return self.environment[found["name"]]
            elif found["default"] is not None:
                return found["default"]
            else:
                name = found["name"]
                hint = f"set it, or write ${{{name}:-VALUE}} for where it is not set"
                self.problems.add(at, f"the environment has no {name}; {hint}")
            return found[0]

        if "\0" in text:  # no file name and no argument may hold it
            self.problems.add(at, "a text holds a NUL character")
        expanded = VARIABLE.sub(variable, text).replace("\0", "")
        if address and expanded.count("${") > kept:
            self.problems.add(at, "an address holds no ${, but as the beginning of a variable that is there")
        return expanded


def with_set(
    root: Value, assignments: list[str], environment: Mapping[str, str], problems: Problems
) -> Value:
    """The values with `key=value` of --set in their places; `steps.NAME.OPTION` is an option of that step.

    They are the user's own word, whoever wrote the recipe.
    """
    for text in assignments:
        path, equals, given = text.partition("=")
        at = Value(None, path, f"--set {public(text)[:200]}", own=True)
        words = path.split(".")
        if not equals or not all(words) or len(words) > MAX_DEPTH:
            where = Value(None, "", at.where)
            problems.add(where, "expected KEY=VALUE, such as steps.merged.method=wm")
            continue
        try:
            node = yaml.compose(given, Loader=yaml.SafeLoader)
        except (yaml.YAMLError, RecursionError, ValueError):
            problems.add(at, f"the value {public(given)[:80]!r} is not YAML")
            continue
        value = _Reader(environment, problems, at.where).value(node, path, 0) if node else at
        root = _replaced(root, words, value, at, problems)
    return root


def _replaced(tree: Value, words: list[str], new: Value, at: Value, problems: Problems) -> Value:
    """`tree` with `new` at the end of `words`; maps that lack a key get it."""
    if not words:
        return replace(new, path=tree.path)
    first, rest = words[0], words[1:]
    if tree.is_list:
        index = _index(tree, first)
        if index is None:
            named = [name for name in map(step_name, tree.value) if name]
            problems.add(at, f"there is no {first!r} among {', '.join(named) or len(tree.value)}")
            return tree
        items = list(tree.value)
        items[index] = _in_step(items[index], rest, new, at, problems)
        return replace(tree, value=items)
    if tree.value is not None and not tree.is_map:
        problems.add(at, f"{tree.path} holds no keys")
        return tree
    keys: dict[str, Value] = dict(tree.value or {})
    path = f"{tree.path}.{first}" if tree.path else first
    keys[first] = _replaced(keys.get(first, Value(None, path, at.where)), rest, new, at, problems)
    return replace(tree, value=keys)


def _in_step(step: Value, words: list[str], new: Value, at: Value, problems: Problems) -> Value:
    """`steps.merged.out` means the option `out` of the command that the step runs."""
    command = step_command(step)
    own = words[:1] == [command] or (words and words[0] in OF_A_STEP)
    within = words if command is None or own else [command, *words]
    return _replaced(step, within, new, at, problems)


def _index(items: Value, word: str) -> int | None:
    names = [step_name(item) for item in items.value]
    if word in names:
        return names.index(word)
    return int(word) - 1 if word.isascii() and word.isdigit() and 0 < int(word[:9]) <= len(names) else None


def step_command(step: Value) -> str | None:
    """The one key of a step that is its command."""
    words = [key for key in step.value if key not in OF_A_STEP] if step.is_map else []
    return words[0] if len(words) == 1 else None


def step_name(step: Value) -> str | None:
    """A step's own name, else that of its command."""
    if not step.is_map:
        return None
    name = step.value.get("name")
    return name.value if name is not None and isinstance(name.value, str) else step_command(step)


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
