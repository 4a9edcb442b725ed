"""What a command opens on first use: models, spec, network, samples. What is done with them is above."""
