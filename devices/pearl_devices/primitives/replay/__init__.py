"""Stores of transitions: replay ring, sum tree, frames, rollouts."""
