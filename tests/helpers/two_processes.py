"""One of two processes of gloo: what they may do together, and what is refused. Run by ``test_processes.py``.

python two_processes.py RANK FOLDER
"""

import json
import sys
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

import groupclip as gc
from groupclip.errors import PrivacyViolation


def refusal(act) -> str:
    try:
        act()
    except PrivacyViolation as error:
        return str(error)
    return ""


def main(rank: int, folder: Path) -> None:
    plan = gc.Mechanism(dataset_size=8, expected_batch_size=4, steps=3, noise_multiplier=1.0)
    x = torch.arange(12.0).reshape(4, 3)[2 * rank : 2 * rank + 2]  # of four samples, two each

    def model() -> torch.nn.Module:
        torch.manual_seed(0)
        return torch.nn.Linear(3, 2)

    early = model()  # attached before there is a group
    optimizer = torch.optim.SGD(early.parameters(), lr=1.0)
    engine = gc.attach(early, optimizer, "all-layer", plan)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    try:
        late = model()

        def attach() -> None:
            gc.attach(late, torch.optim.SGD(late.parameters(), lr=1.0), "all-layer", plan).detach()

        found = {
            "attach": refusal(attach),
            "plain": all(type(p) is torch.nn.Parameter for p in late.parameters()),
        }
        before = [p.detach().clone() for p in early.parameters()]
        engine.backward(early(x).square().sum(1))
        found["step"] = refusal(optimizer.step)
        found["steps"] = engine.ledger.steps
        found["moved"] = any(not torch.equal(a, b) for a, b in zip(before, early.parameters(), strict=True))
        engine.detach()
        # clipping alone: the mean over processes of clipped sums
        shared = DistributedDataParallel(late)
        clipping = gc.attach(shared, None, "all-layer", None, loss_reduction="sum")
        shared(x).square().sum().backward()
        found["clipped"] = [p.grad.flatten().tolist() for p in late.parameters()]
        clipping.detach()
    finally:
        torch.distributed.destroy_process_group()
    (folder / f"{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
