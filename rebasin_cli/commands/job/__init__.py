"""What the commands on files share: one `Job` with models, spec, network, samples, proof and search in it."""
