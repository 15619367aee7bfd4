"""Tests of the Python programs, of scripts/summary.py and of the container recipes: cd scripts && python3 -m tests."""
