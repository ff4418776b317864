"""Reports of plans and runs, as tables, text and HTML."""

__all__ = ["balance_text", "report", "tables"]
