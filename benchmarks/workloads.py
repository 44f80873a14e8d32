"""Six jobs whose memory behaves differently; the same requests every time for one seed.

Each is a function of a device and a seed that runs to its end in a few seconds; WORKLOADS is the table. They are what
whatif_accuracy.py records under one setting and predicts for others.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import nn

MIB = 1 << 20


class Decoder(nn.Module):
    """A small language model: embeddings, causal layers, a head."""

    def __init__(self, width: int = 768, layers: int = 8, vocabulary: int = 16_000) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 12, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.embed = nn.Embedding(vocabulary, width)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
        return self.head(self.layers(self.embed(tokens), mask=mask, is_causal=True))

    def loss(self, tokens: torch.Tensor) -> torch.Tensor:
        logits = self(tokens[:, :-1])
        return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def train_varying(device: str, seed: int, steps: int = 25) -> None:
    """AdamW on batches whose number and length of sequences vary."""
    rng = random.Random(1 + 10 * seed)
    model = Decoder().to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        tokens = torch.randint(0, 16_000, (rng.randrange(2, 9), rng.randrange(64, 512)), device=device)
        model.loss(tokens).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def accumulate(device: str, seed: int, steps: int = 8, micro_batches: int = 4) -> None:
    """Several backward passes of varying length for one optimizer step."""
    rng = random.Random(2 + 10 * seed)
    model = Decoder(width=576, layers=6).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        for _ in range(micro_batches):
            tokens = torch.randint(0, 16_000, (4, rng.randrange(128, 768)), device=device)
            (model.loss(tokens) / micro_batches).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


class Pyramid(nn.Module):
    """A small vision model that adds up features of four scales."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        widths = [3, width, 2 * width, 4 * width, 8 * width]
        self.stages = nn.ModuleList(
            nn.Sequential(nn.Conv2d(a, b, 3, stride=2, padding=1), nn.BatchNorm2d(b), nn.ReLU())
            for a, b in pairwise(widths)
        )
        self.sides = nn.ModuleList(nn.Conv2d(b, 2 * width, 1) for b in widths[1:])
        self.head = nn.Conv2d(2 * width, 21, 3, padding=1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        features = []
        for stage in self.stages:
            image = stage(image)
            features.append(image)
        size = features[0].shape[-2:]
        sides = [side(feature) for side, feature in zip(self.sides, features)]
        return self.head(sum(nn.functional.interpolate(side, size=size) for side in sides))


def vision(device: str, seed: int, steps: int = 25) -> None:
    """SGD on images of many sizes."""
    rng = random.Random(3 + 10 * seed)
    model = Pyramid().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for _ in range(steps):
        side = rng.randrange(6, 20) * 32
        model(torch.randn(rng.randrange(2, 9), 3, side, side, device=device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def kv_growth(device: str, seed: int, rounds: int = 600) -> None:
    """Requests of a server that come, grow their key-value buffers by copying, and go."""
    rng = random.Random(4 + 10 * seed)
    requests: list[torch.Tensor] = []
    for _ in range(rounds):
        if len(requests) < 24:
            requests.append(torch.empty(rng.randrange(32, 512), 8192, dtype=torch.half, device=device))
        index = rng.randrange(len(requests))
        grown = torch.empty(requests[index].shape[0] + 64, 8192, dtype=torch.half, device=device)
        requests[index] = grown
        if rng.random() < 0.1:
            requests.pop(rng.randrange(len(requests)))


def streams(device: str, seed: int, rounds: int = 1500) -> None:
    """Random blocks on three streams, some used by a second one."""
    rng = random.Random(5 + 10 * seed)
    lanes = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()] if device == "cuda" else [None]
    held: list[torch.Tensor] = []
    for _ in range(rounds):
        with torch.cuda.stream(rng.choice(lanes)):
            held.append(torch.empty(int(2 ** rng.uniform(9, 26)), dtype=torch.uint8, device=device))
        if rng.random() < 0.2 and device == "cuda":
            held[-1].record_stream(rng.choice(lanes))
        if len(held) > 60:
            held.pop(rng.randrange(len(held)))


def churn(device: str, seed: int, rounds: int = 3000) -> None:
    """Random sizes, random lifetimes, then two thirds freed and one large block."""
    rng = random.Random(6 + 10 * seed)
    held: list[torch.Tensor] = []
    for _ in range(rounds):
        held.append(torch.empty(int(2 ** rng.uniform(9, 27)), dtype=torch.uint8, device=device))
        if len(held) > 150:
            held.pop(rng.randrange(len(held)))
    rng.shuffle(held)
    del held[: len(held) * 2 // 3]
    held.append(torch.empty(512 * MIB, dtype=torch.uint8, device=device))


WORKLOADS: dict[str, Callable[[str, int], None]] = {
    "train-varying": train_varying,
    "kv-growth": kv_growth,
    "streams": streams,
    "churn": churn,
    "vision": vision,
    "accumulate": accumulate,
}
