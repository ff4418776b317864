"""Reports of plans and runs, as tables, text and HTML."""
