"""Processes: the ranks of a run, where each is placed, what its environment says."""
