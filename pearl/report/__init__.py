"""Reports of plans and runs, as terminal text, HTML and JSON."""

__all__ = [
    "balance_text",
    "bands_text",
    "compare",
    "document",
    "figures",
    "html",
    "lead",
    "report",
    "tables",
    "terminal",
    "words",
]
