"""The path between two models: rows, controls, intervals, gates, and the barrier report, in memory."""
