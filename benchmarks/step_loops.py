"""Training loops, one step at a time: what margin.py and live_whatif.py record, and run again under limits."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

LOOPS = ("gpt2-varying", "llama-varying", "resnet-varying", "accumulate", "two-models")


class Loop:
    """A training loop of transformers' GPT-2 or Llama, timm's ResNet-50, or decoders of workloads.py.

    The same requests every time for one name. `rng` chooses the shapes of the next step: set its state back to repeat
    a step.
    """

    def __init__(self, name: str) -> None:
        import torch

        self._torch = torch
        self.rng = random.Random(7)
        self._micro_batches = 3 if name == "accumulate" else 1
        self._losses, modules = _models(name, self.rng)
        self._optimizer: Any = torch.optim.AdamW([parameter for each in modules for parameter in each.parameters()])

    def step(self) -> None:
        for _ in range(self._micro_batches):
            with self._torch.autocast("cuda", dtype=self._torch.bfloat16):
                loss = sum(each() for each in self._losses)
            loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

    def forget(self) -> None:
        """After a step that failed: drop its gradients."""
        self._optimizer.zero_grad(set_to_none=True)


def _models(name: str, rng: random.Random) -> tuple[list[Callable[[], Any]], list[Any]]:
    import torch

    def tokens(vocabulary: int, shape: tuple[int, int]) -> torch.Tensor:
        return torch.randint(0, vocabulary, shape, device="cuda")

    if name == "resnet-varying":
        import timm

        network = timm.create_model("resnet50", pretrained=False).cuda()

        def loss_of_images() -> torch.Tensor:
            side = rng.randrange(128, 321, 32)
            return network(torch.randn(rng.randrange(8, 33), 3, side, side, device="cuda")).square().mean()

        return [loss_of_images], [network]
    if name in ("gpt2-varying", "llama-varying"):
        import transformers

        if name == "gpt2-varying":
            vocabulary = 50_257
            model: Any = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=6, n_embd=512, n_head=8))
        else:
            vocabulary = 32_000
            config = transformers.LlamaConfig(
                num_hidden_layers=6,
                hidden_size=512,
                intermediate_size=1536,
                num_attention_heads=8,
                vocab_size=vocabulary,
            )
            model = transformers.LlamaForCausalLM(config)
        model = model.cuda()

        def loss_of_text() -> Any:
            text = tokens(vocabulary, (4, rng.randrange(64, 1000)))
            return model(input_ids=text, labels=text).loss

        return [loss_of_text], [model]
    from workloads import Decoder

    decoders = [Decoder(width=576, layers=6).to("cuda")]
    if name == "two-models":
        decoders.append(Decoder(width=384, layers=4).to("cuda"))

    def loss_of(decoder: Any) -> torch.Tensor:
        return decoder.loss(tokens(16_000, (rng.randrange(2, 9), rng.randrange(64, 512))))

    return [lambda each=each: loss_of(each) for each in decoders], decoders
