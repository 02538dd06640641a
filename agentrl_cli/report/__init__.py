"""Reports on runs and episodes: in the terminal and as an HTML page."""
