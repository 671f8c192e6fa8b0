"""Sweeps: which runs a study needs, and getting each of them done exactly once."""
