"""What a person reads of runs and episodes."""
