"""Twenty Questions over a table of everyday objects."""
