"""Figures of reports: each makes a `document.Drawing`, or None if there is nothing to draw."""

__all__ = ["bars", "curves", "front", "graph", "ratios", "roofline", "timeline"]
