"""A batch that a network takes, by its class and configuration: token numbers, images, sound, noise."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

TOKENS, FRAMES = 6, 2_000
Draw = Callable[[torch.Generator], Any]


def images(size: tuple[int, ...]) -> Draw:
    """Two images of this size (channels, height, width), uniform in [0, 1)."""
    return lambda generator: torch.rand(2, *size, generator=generator)


def of_transformers(network: nn.Module, config: Any) -> Draw:
    """By what the class says that it takes first."""
    text, vision = getattr(config, "text_config", config), getattr(config, "vision_config", config)
    words, sizes = getattr(text, "vocab_size", 16), getattr(vision, "image_size", 224)
    channels = getattr(vision, "num_channels", 3)
    main = getattr(network, "main_input_name", "input_ids")
    more = bool(getattr(config, "is_encoder_decoder", False))
    both = text is not config and vision is not config
    takes = inspect.signature(network.forward).parameters

    def batch(generator: torch.Generator) -> dict[str, Any]:
        found: dict[str, Any] = {}
        length = min(TOKENS, getattr(text, "max_position_embeddings", TOKENS) or TOKENS)
        ids = torch.randint(3, max(4, words - 1), (2, length), generator=generator)
        if main == "pixel_values" or both:
            side = (sizes, sizes) if isinstance(sizes, int) else tuple(sizes)
            found["pixel_values"] = torch.rand(2, channels, *side, generator=generator)
        if main == "input_features":
            frames = 2 * config.max_source_positions
            found["input_features"] = torch.rand(2, config.num_mel_bins, frames, generator=generator)
        if main == "input_values":
            bins = getattr(config, "num_mel_bins", None)
            shape = (FRAMES,) if bins is None else (config.max_length, bins)
            found["input_values"] = torch.randn(2, *shape, generator=generator)
        if main == "input_ids" or both:
            found["input_ids"] = ids
        if more:
            found["decoder_input_ids"] = ids
        if "global_attention_mask" in takes:  # else what it runs for these places is not seen
            found["global_attention_mask"] = (torch.arange(length) % 3 == 0).long().expand(2, -1)
        return found

    return batch


def of_diffusers(network: nn.Module, config: Any) -> Draw | None:
    """Noise of the shape that the configuration tells, with what else `forward` asks for; None for others."""
    wanted = inspect.signature(network.forward).parameters
    channels = config.get("in_channels")
    side = config.get("sample_size") or 32
    side = (side, side) if isinstance(side, int) else tuple(side)
    text = config.get("cross_attention_dim")
    known = {
        "sample": lambda rng: torch.randn(2, channels, *side, generator=rng),
        "timestep": lambda rng: torch.randint(1, 900, (2,), generator=rng),
        "encoder_hidden_states": lambda rng: torch.randn(2, TOKENS, text, generator=rng),
    }
    needed = [
        name
        for name, one in wanted.items()
        if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD
    ]
    if not isinstance(channels, int) or not {*needed} <= known.keys():
        return None
    if "encoder_hidden_states" in needed and not isinstance(text, int):
        return None
    return lambda generator: {name: known[name](generator) for name in needed}
