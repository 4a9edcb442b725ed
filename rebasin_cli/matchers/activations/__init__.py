"""The engine of `am` and `dual`: where a word's units are seen in a network, and what they do on data."""

MATCH_BATCH = 250  # samples a batch where activations are looked at: both networks' are in memory at once
