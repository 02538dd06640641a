"""From YAML groups and overrides to checked values and to the objects that they name."""
