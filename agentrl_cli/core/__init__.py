"""Types, errors, files and statistics that all parts share. Nothing here imports torch."""
