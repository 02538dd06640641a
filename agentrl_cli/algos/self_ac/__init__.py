"""Self-AC: actor and critic in one transformer."""
