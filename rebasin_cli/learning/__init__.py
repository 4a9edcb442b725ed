"""What learns by steps on batches: training, its schedules, and curves between models."""
