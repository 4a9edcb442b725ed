"""Architectures' permutation symmetries: notation, spec, library, atoms, proof."""
