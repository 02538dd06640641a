"""The run folder: what is kept of a run, where it lies, who else is told."""
