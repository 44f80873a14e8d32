"""Two optimizer steps of real torch, on the CPU, seen through the source's hook; prints how many it saw."""

import torch

from gpufrag.agent.torch_source import connect
from gpufrag.agent.trouble import Trouble

seen: list[object] = []
source = connect(torch, Trouble())
assert source.watch_steps(seen.append)
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
source.close()
optimizer.step()
print(len(seen))
