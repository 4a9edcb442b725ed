"""What people bring, rebuilt small: each comes out right, or is refused by name with the next step."""

from pathlib import Path

import pytest
import torch

from ._situations import SITUATIONS

PAGE = Path(__file__).with_name("situations.md")


@pytest.mark.parametrize("name", SITUATIONS)
def test_what_people_bring_comes_out_right_or_is_refused_by_name(name, run_situation):
    run_situation(SITUATIONS[name])


def test_the_page_lists_every_situation():
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")][1:]
    assert rows == [situation.row for situation in SITUATIONS.values()]


@pytest.fixture
def run_situation():
    from tests.cli.conftest import rebasin

    def run_situation(situation):
        torch.manual_seed(0)
        situation.make()
        outcome = rebasin(*situation.command.split())
        told = outcome.out + outcome.err
        assert outcome.code == situation.code, told
        assert all(words in told for words in situation.says) and "Traceback" not in told, told
        assert situation.holds is None or situation.holds()
        assert outcome.code == 0 or not any(Path(out).exists() for out in ("out.safetensors", "out")), told

    return run_situation
