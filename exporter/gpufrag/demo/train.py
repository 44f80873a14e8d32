"""The demo's rank on a real GPU: trains a small model on batches of varying length until it is stopped."""

from __future__ import annotations

import random

from .. import start
from ..errors import GpufragError, Unavailable


def main() -> None:
    try:
        import torch
    except ImportError:
        raise Unavailable("--gpu needs torch: install it, or omit --gpu") from None
    if not torch.cuda.is_available():
        raise Unavailable("--gpu needs a GPU that torch can use: omit --gpu to replay recorded traces")
    start(interval=1.0)
    rng = random.Random(0)
    model = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(512, 8, batch_first=True), 6).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    while True:
        batch = torch.randn(rng.randrange(2, 17), rng.randrange(64, 1024), 512, device="cuda")
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    try:
        main()
    except GpufragError as error:
        raise SystemExit(f"gpufrag demo: {error}") from None
    except KeyboardInterrupt:
        pass
