"""Reports of plans and runs, as tables, text and HTML."""

__all__ = ["balance_text", "bands_text", "html", "report", "tables"]
