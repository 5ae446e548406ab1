"""Recorded results of small fits, to show that a change of the code changes no result."""
