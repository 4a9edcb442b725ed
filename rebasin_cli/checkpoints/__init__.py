"""Files to named tensors and back: formats, envelopes, lazy reading, atomic writing; knows no specs."""
