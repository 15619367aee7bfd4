"""A small language model, the text that it learns, and settings that make each run of a training give the same numbers."""

import argparse
import inspect
import typing
from pathlib import Path

import torch
from torch import nn

CONTEXT, WIDTH, HEADS, LAYERS, BYTES = 128, 256, 4, 4, 256
# Source text that every Python has.
SOURCES = [argparse, typing]


class Block(nn.Module):
    """One layer of the model: attention, then a feed-forward network."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_attention, self.norm_feed_forward = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention_in, self.attention_out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.feed_forward = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.register_buffer("future", torch.ones(CONTEXT, CONTEXT, dtype=torch.bool).triu(1), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.attention_in(self.norm_attention(x)).view(*x.shape[:2], 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        query, key, value = parts
        # Written out: fused attention may add up its gradients in another order each time.
        scores = (query @ key.transpose(-2, -1)) * (WIDTH // HEADS) ** -0.5
        weights = scores.masked_fill(self.future, float("-inf")).softmax(-1)
        x = x + self.attention_out((weights @ value).transpose(1, 2).reshape(x.shape))
        return x + self.feed_forward(self.norm_feed_forward(x))


class Model(nn.Module):
    """A decoder of bytes, 3 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.position = nn.Embedding(BYTES, WIDTH), nn.Parameter(torch.zeros(CONTEXT, WIDTH))
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
        self.norm, self.output = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, BYTES)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        return self.output(self.norm(self.blocks(self.embedding(text) + self.position)))


def make_repeatable(seed: int) -> None:
    """Of PyTorch in this process: all that it computes from here on."""
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(True)
    torch.backends.cuda.matmul.allow_tf32 = False


def samples(steps: int, batch: int, seed: int) -> torch.Tensor:
    """Text for all steps: [steps, batch, CONTEXT + 1] bytes, each passage from a random place."""
    text = b"".join(Path(inspect.getfile(source)).read_bytes() for source in SOURCES)
    corpus = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    places = torch.randint(len(corpus) - CONTEXT - 1, (steps, batch, 1), generator=torch.Generator().manual_seed(seed))
    return corpus[places + torch.arange(CONTEXT + 1)]
