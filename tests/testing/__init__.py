"""Tests of the shipped contracts."""
