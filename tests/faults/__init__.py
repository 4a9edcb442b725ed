"""What is left when a process is killed, a disk fails, or ten write at once."""
