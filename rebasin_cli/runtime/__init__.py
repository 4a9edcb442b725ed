"""The machine: devices, processes that search together, signals, seeds. Knows nothing of models."""
