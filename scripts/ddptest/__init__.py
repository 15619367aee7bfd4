"""The parts of scripts/ddp.py. Python's standard library only, but for train.py and model.py, which need torch."""
