"""Hangs of a PyTorch job, planted at one rank: does the report over Ferrite name it?"""
