"""The engine of `am` and `dual`: where a word's units are seen in a network, and what they do on data."""
