"""A search that was interrupted is kept whole."""

import pytest
import torch

from rebasin_cli.matchers import State


def test_a_kept_search_comes_back_as_it_was(tmp_path):
    output, words, said = tmp_path / "out.safetensors", {"h": 3}, []
    state = State(({"h": torch.tensor([2, 0, 1])},), 4, 0.1 + 0.2, {"attempt": 2, "first": 1 / 3})

    def keeping(resume):
        return keeping.keeping(output, {"rebasin.seed": "1"}, words, resume=resume, say=said.append)

    with pytest.raises(KeyboardInterrupt), keeping(False) as kept:
        kept.reached(state)
        raise KeyboardInterrupt
    with keeping(True) as kept:
        assert torch.equal(kept.start.permutations[0]["h"], state.permutations[0]["h"])
        assert (kept.start.sweep, kept.start.objective, kept.start.notes) == (4, 0.1 + 0.2, state.notes)
    assert "going on after sweep 4" in said and not keeping.state_path(output).exists()
