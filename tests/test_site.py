"""The site: which files it brings in from outside docs/, and where the links of its pages lead."""

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest

FILES = {
    "README.md": "[how](docs/how.md#a-part) [specs](specs/README.md) [web](https://a.b/c) [gone](gone.md)",
    "docs/how.md": "[home](../README.md), [deep](deep/one.md) `[code](../secret.py)`\n"
    "```\n[block](../secret.py)\n```\n[log](../CHANGELOG.md#1), ![drawn](a.png)",
    "docs/deep/one.md": "[up](../how.md) [code](../../rebasin_cli/a.py)",
    "specs/README.md": "[other](other.md) [page](../docs/how.md) [home](../README.md)",
    "specs/other.md": "[back](README.md)",
    "CHANGELOG.md": "all",
    "rebasin_cli/a.py": "[no](../secret.py)",
    "secret.py": "",
}


@pytest.fixture
def site(tmp_path, monkeypatch):
    pytest.importorskip("mkdocs")
    place = Path(__file__).parents[1] / "docs" / "site.py"
    spec = importlib.util.spec_from_file_location("the_site", place)
    site = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(site)
    monkeypatch.setattr(site, "ROOT", tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return site


def test_whatever_a_page_links_to_is_brought_in_and_nothing_else(site, tmp_path):
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import File, Files

    config = MkDocsConfig()
    config.load_dict({"site_name": "x", "docs_dir": str(tmp_path / "docs"), "site_dir": str(tmp_path / "s")})
    config.validate()
    own = ("how.md", "deep/one.md")
    files = Files([File(name, config.docs_dir, config.site_dir, True) for name in own])
    config.plugins.events["files"].append(site.on_files)
    found = {file.src_uri: file for file in config.plugins.on_files(files, config=config)}
    assert set(found) == {
        *own,
        "index.md",
        "repo/CHANGELOG.md",
        "repo/rebasin_cli/a.py",
        "repo/specs/README.md",
        "repo/specs/other.md",  # which only a page that was brought in links to
    }
    assert Path(found["index.md"].abs_src_path) == tmp_path / "README.md"


def test_links_lead_where_the_site_has_their_targets_and_code_stays(site):
    def told(uri):
        return site.on_page_markdown(
            FILES[site._source(uri)],
            page=SimpleNamespace(file=SimpleNamespace(src_uri=uri)),
            config=None,
            files=None,
        )

    assert told("index.md") == (
        "[how](how.md#a-part) [specs](repo/specs/README.md) [web](https://a.b/c) [gone](repo/gone.md)"
    )
    assert told("how.md") == (
        "[home](index.md), [deep](deep/one.md) `[code](../secret.py)`\n"
        "```\n[block](../secret.py)\n```\n[log](repo/CHANGELOG.md#1), ![drawn](a.png)"
    )
    assert told("deep/one.md") == "[up](../how.md) [code](../repo/rebasin_cli/a.py)"
    assert told("repo/specs/README.md") == "[other](other.md) [page](../../how.md) [home](../../index.md)"
