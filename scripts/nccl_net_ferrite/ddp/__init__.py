"""The program ddp: the same training over three networks."""
