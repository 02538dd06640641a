"""What every part may use: types, errors, files, statistics. Nothing here needs torch."""
