"""PEARL."""
