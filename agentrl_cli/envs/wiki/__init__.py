"""An encyclopedia of linked pages: search, open, find, save the lines that prove it, submit."""
