"""Elements in a file: written, read back, and told from everything else."""

import pytest
import torch

from rebasin_cli.checkpoints.checkpoint import open_checkpoint
from rebasin_cli.checkpoints.writer import write_safetensors
from rebasin_cli.errors import CheckpointError, OutputExists
from rebasin_cli.symmetry import stored
from rebasin_cli.symmetry.elements import Elements

ORDER = {"a": torch.tensor([2, 0, 1]), "b": torch.tensor([1, 0])}
MAPS = {"b": torch.tensor([-1.0, 2.0], dtype=torch.float64)}


def test_orders_are_written_with_their_metadata_and_read_back(tmp_path):
    path = tmp_path / "b.perm.safetensors"
    stored.save(path, Elements(ORDER), metadata={"rebasin.method": "wm"})
    found = stored.load(path)
    assert found.metadata["rebasin.method"] == "wm" and not found.brings_spec and not found.elements.maps
    assert found.metadata[stored.KEY] == stored.ORDERS
    assert found.elements.permutations.keys() == ORDER.keys()
    assert all(torch.equal(found.elements.permutations[word], ORDER[word]) for word in ORDER)
    with pytest.raises(OutputExists):
        stored.save(path, Elements(ORDER), metadata={})
    stored.save(path, Elements(ORDER | {"b": torch.arange(2)}), metadata={}, force=True)
    assert torch.equal(stored.load(path).elements.permutations["b"], torch.arange(2))


def test_maps_are_written_beside_their_orders_with_the_form_that_they_act_in(tmp_path):
    form = {stored.SPEC: "s", stored.FOLDS: "f"}
    stored.save(tmp_path / "e.perm.safetensors", Elements(ORDER, MAPS), form=form, metadata={"note": "n"})
    found = stored.load(tmp_path / "e.perm.safetensors")
    told = {**form, stored.KEY: stored.ELEMENTS, "note": "n"}  # who knows orders alone reads no maps past it
    assert found.brings_spec and told.items() <= found.metadata.items()
    assert torch.equal(found.elements.maps["b"], MAPS["b"]) and found.elements.maps.keys() == MAPS.keys()
    assert set(open_checkpoint(tmp_path / "e.perm.safetensors")) == {"a", "b", "b:map"}


@pytest.mark.parametrize("kind", [None, "search", stored.ELEMENTS])
def test_another_file_is_no_permutation_file(tmp_path, kind):
    """Nor are elements that do not say what they are of."""
    metadata = {} if kind is None else {stored.KEY: kind}
    write_safetensors(tmp_path / "w.safetensors", {"w": torch.zeros(2)}, metadata=metadata)
    with pytest.raises(CheckpointError, match="is not a permutation file"):
        stored.load(tmp_path / "w.safetensors")
