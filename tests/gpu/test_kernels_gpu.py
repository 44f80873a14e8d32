"""What depends on the results of real kernels."""

from pathlib import Path

import pytest

from gpufrag import agent

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning"),
]


def test_compiled_model_computes_the_same_under_the_agent(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(128, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8)).cuda()
    agent.start(interval=0.05, budget=1.0, folder=tmp_path)
    compiled = torch.compile(model, mode="reduce-overhead")
    batch = torch.randn(32, 128, device="cuda")
    with torch.no_grad():
        expected = model(batch)
        for _ in range(5):
            torch.compiler.cudagraph_mark_step_begin()
            found = compiled(batch).clone()
    agent.stop()
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
