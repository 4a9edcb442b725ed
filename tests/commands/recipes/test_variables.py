"""Secrets of the environment and of addresses: used where they have to be, and in nothing that is kept."""

import hashlib
import io
import urllib.request
from pathlib import Path

import pytest

from rebasin_cli.commands.recipes import downloads
from rebasin_cli.commands.recipes.downloads import Fetcher
from rebasin_cli.commands.recipes.reader import Had, is_secret, public
from rebasin_cli.errors import CheckpointError

CONTENT = b"weights"
DIGEST = hashlib.sha256(CONTENT).hexdigest()
ENVIRONMENT = {"API_TOKEN": "hunter2", "DB_PASSWORD": "1", "RUN": "a", "SLY": "${API_TOKEN}", "EMPTY_KEY": ""}
SECRET = (
    "HF_TOKEN API_KEY apikey SSH_KEYFILE AWS_SECRET_ACCESS_KEY password DB_PASSWD DB_PASS DB_PWD AccessToken "
)
SECRET += "GH_PAT OAUTH2 AUTHORIZATION CREDENTIALS_JSON PASSPHRASE AZURE_SAS DBPASS SMTP_PASS2 "
SECRET += "DBPWD DB_PW JWT BEARER SESSION_COOKIE GPG_PRIVATE"
PLAIN = (
    "RUN PATH PWD OLDPWD GIT_AUTHOR_NAME TOKENIZER TOKENIZERS_PARALLELISM COMPASS BYPASS PATTERN SEED SURPASS"
)


def test_a_variables_name_says_whether_it_is_a_secret():
    assert [name for name in SECRET.split() if not is_secret(name)] == []
    assert [name for name in PLAIN.split() if is_secret(name)] == []


def test_of_an_address_neither_login_nor_signature_is_shown():
    shown = {
        "https://u:hunter2@h/a.pt": "https://***@h/a.pt",
        "--set x=https://u:hun@ter2@h:1/a?sig=hunter2 and https://h": "--set x=https://***@h:1/a?*** and https://h",
        "see https://h/a#token=hunter2": "see https://h/a?***",
        "git+ssh://hunter2@h/a": "git+ssh://***@h/a",
        "https://h/a.pt, a/b@c": "https://h/a.pt, a/b@c",
    }
    assert {text: public(text) for text in shown} == shown
    assert public("a" * 100_000 + " ://") == "a" * 100_000 + " ://"  # at once


def test_a_secret_is_no_part_of_a_recipe_and_no_message_shows_it(recipe):
    places = (
        "inputs: {x: '%s'}\nsteps: [{align: {models: [a.safetensors, x]}}]",
        "inputs: {url: '%s'}\nsteps: [{align: {models: [a.safetensors, url]}}]",
        "description: '%s'\nsteps: [{align: {models: [a.safetensors, b.safetensors]}}]",
        "steps: [{align: {models: [a.safetensors, '%s']}}]",
        "steps: [{align: {models: [a.safetensors, b.safetensors], out: '%s'}}]",
        "steps: [{align: {models: [a.safetensors, b.safetensors], url: '%s'}}]",
        "output_dir: '%s'\nsteps: [{align: {models: [a.safetensors, b.safetensors], seed: '%s'}}]",
        "models: [{model: '%s'}, {model: b.safetensors}]\nmerge_method: linear",
    )
    for place in places:
        for written in ("x${API_TOKEN}", "${API_TOKEN:-x}", "${DB_PASSWORD}", "${EMPTY_KEY}"):
            made, problems = recipe(place.replace("%s", written), environment=ENVIRONMENT)
            assert problems and all("hunter2" not in line for line in problems), (place, written)
            assert "hunter2" not in repr(made)
    _, problems = recipe(
        places[0] % "a.safetensors", environment=ENVIRONMENT, assignments=["inputs.x=${API_TOKEN}"]
    )
    assert "is a secret by its name" in problems[0] and "hunter2" not in "".join(problems)


@pytest.fixture
def fetcher(tmp_path):
    """A fetcher, and what it asked for and said."""
    asked, said = [], []

    def opened(address):
        asked.append(address)
        return io.BytesIO(CONTENT)

    made = Fetcher(tmp_path / "d", said.append, allowed=True, opened=opened, environment=ENVIRONMENT)
    return made, asked, said


def test_an_address_gets_its_secret_when_it_is_asked_for_and_records_have_none(recipe, fetcher, tmp_path):
    fetch, asked, said = fetcher
    text = "inputs: {x: {url: 'https://h/${RUN}/${API_TOKEN}/m.pt?s=${DB_PASSWORD}', sha256: '"
    text += DIGEST + "'}}\n"
    text += "steps: [{align: {models: [a.safetensors, x]}}]"
    made, problems = recipe(text, environment=ENVIRONMENT, fetch=fetch)
    assert problems == [] and asked == ["https://h/a/hunter2/m.pt?s=1"]
    assert made.downloads[0]["uri"] == "https://h/a/${API_TOKEN}/m.pt?***"
    kept = [path.as_posix() for path in (tmp_path / "d").rglob("*")]
    assert "hunter2" not in "".join([*said, *kept, *made.steps[0].line()])
    again = (
        "steps: [{align: {models: [a.safetensors, {url: 'https://h/m?${%s}', sha256: '" + DIGEST + "'}]}}]"
    )
    for name, what in {"MISSING_TOKEN": "no MISSING_TOKEN", "SLY": "holds no ${"}.items():
        _, problems = recipe(again % name, environment=ENVIRONMENT, fetch=fetch)
        assert what in "".join(problems) and "hunter2" not in "".join(problems + asked[1:])


def test_what_a_failed_download_says_repeats_no_secret(recipe, fetcher):
    fetch, _, _ = fetcher

    def opened(address):
        raise urllib.request.http.client.InvalidURL(f"nonnumeric port: {address}")

    fetch.opened = opened
    for address in ("https://u:${API_TOKEN}@h/a", "https://h/a?s=hunter2", "https://h/${API_TOKEN}"):
        with pytest.raises(CheckpointError) as failed:
            fetch(address, DIGEST)
        assert "hunter2" not in str(failed.value) and "could not be fetched: InvalidURL" in str(failed.value)


def test_a_login_goes_to_the_host_that_it_stands_before_and_not_where_that_leads(monkeypatch):
    asked = []
    monkeypatch.setattr(
        urllib.request.OpenerDirector, "open", lambda self, request, **how: asked.append((self, request))
    )
    downloads._open("https://user:hunter%202@h:8/a?x=1")
    ((opener, request),) = asked
    assert request.full_url == "https://h:8/a?x=1"
    assert request.unredirected_hdrs == {"Authorization": "Basic dXNlcjpodW50ZXIgMg=="}
    (handler,) = [each for each in opener.handlers if isinstance(each, downloads._OnlySecure)]
    on = handler.redirect_request(request, None, 302, "", {}, "https://elsewhere/")
    assert "Authorization" not in {**on.headers, **on.unredirected_hdrs}


def test_a_strangers_recipe_gets_no_login_of_the_hub(tmp_path):
    class Hub:
        def hf_hub_download(self, repo, file, *, revision, local_dir, **login):
            local_dir.mkdir(parents=True)
            (local_dir / file).write_bytes(CONTENT)
            given.append(login)

    given = []
    for stranger in (True, False):
        folder = tmp_path / str(stranger)
        fetch = Fetcher(folder, lambda text: None, allowed=True, stranger=stranger, hub=Hub())
        fetch(f"hf:org/name@{'0' * 40}:m.safetensors", None)
    assert given == [{"token": False}, {}]


def test_an_address_with_a_login_is_a_secret_whatever_its_variable_is_called(recipe):
    for held in ("https://bob:hunter2@h/a", "see postgres://hunter2@h", "https://h/a?sig=hunter2"):
        steps = "steps: [{align: {models: [a.safetensors, b.safetensors], data: '${URL}'}}]"
        made, problems = recipe(steps, environment={"URL": held})
        assert "${URL} holds an address with a login" in problems[0]
        assert "hunter2" not in repr((made, problems))
    _, problems = recipe(steps, environment={"URL": "https://h/a"})
    assert problems == []
    url = f"inputs: {{x: {{url: '${{URL}}/a', sha256: {DIGEST}}}}}\n"
    url += "steps: [{align: {models: [x, a.safetensors]}}]"
    _, problems = recipe(
        url,
        environment={"URL": "https://bob:hunter2@h"},
        fetch=Fetcher(Path("d"), print, allowed=True).expected,
    )
    assert problems == []


def test_a_command_line_is_told_without_the_login_of_an_address(recipe):
    text = "steps: [{align: {models: [a.safetensors, b.safetensors], data: 'https://bob:hunter2@h/a?b'}}]"
    made, _ = recipe(text)
    (step,) = made.steps
    assert "hunter2" in " ".join(step.line())
    assert step.shown()[0] == "rebasin" and "https://***@h/a?***" in step.shown()


def test_of_the_variables_that_a_recipe_had_no_secret_is_noted(recipe):
    seen = {}
    text = "steps: [{align: {models: [a.safetensors, b.safetensors], data: '${RUN}${API_TOKEN}${URL}'}}]"
    recipe(text, environment=Had({**ENVIRONMENT, "URL": "https://u:hunter2@h"}, seen))
    assert seen == {"RUN": "a", "URL": "https://***@h"}
