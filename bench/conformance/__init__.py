"""Conformance: whether a loss, ours or another library's, is the one that its formula says."""
