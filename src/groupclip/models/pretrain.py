"""Public pretraining: a model learns strokes from drawn letters before it sees a private record.

Private training from random weights wastes most of its budget on learning to see; the paper, too, fine-tunes
pretrained transformers. Drawn letters need no download and hold no record of anybody.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from ..tasks.letters import LETTERS, distort, draw_letters, fit
from .cnn import SmallCNN
from .vit import VisionTransformer

BATCH = 128
LEARNING_RATE = 4e-3
WEIGHT_DECAY = 0.05
WARMUP = 20  # steps


def pretrain_on_letters(
    model: nn.Module,
    input_shape: tuple[int, ...],
    *,
    steps: int = 1000,
    seed: int = 0,
    on_step: Callable[[int], None] | None = None,
) -> dict[str, object]:
    """Train the body of a ViT or of cnn-small, in place, to tell drawn letters apart; its head stays as it is.

    Plain training with AdamW, no privacy spent and none needed: do it before ``groupclip.attach``.

    Args:
        model: whose attribute ``head`` is its last layer; for images of ``input_shape`` (C, H, W).
        steps: batches of 128 letters, distorted anew each time.
        seed: of the distortions and of the head for letters, both public.
        on_step: called after each step with the number of steps done.

    Returns:
        JSON-able facts for reports.

    Raises:
        ValueError: another model, or steps below 1.
        ModuleNotFoundError: matplotlib or Pillow isn't installed.
    """
    if not isinstance(model, VisionTransformer | SmallCNN):
        raise ValueError(f"{type(model).__name__} can't be pretrained on letters; only the ViTs and cnn-small can")
    if steps < 1:
        raise ValueError(f"steps={steps} must be at least 1")
    glyphs, classes = draw_letters()
    generator = torch.Generator().manual_seed(seed)
    device = model.head.weight.device
    head = model.head
    letters_head = nn.Linear(head.in_features, len(LETTERS), device=device)
    with torch.no_grad():
        letters_head.weight.copy_(0.02 * torch.randn(letters_head.weight.shape, generator=generator))
        letters_head.bias.zero_()
    model.head = letters_head
    try:
        optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
        # up in a line, then down in a line to zero
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: min(1, (step + 1) / WARMUP) * (1 - step / steps)
        )
        for step in range(steps):
            chosen = torch.randint(len(glyphs), (BATCH,), generator=generator)
            images = fit(distort(glyphs[chosen], generator), input_shape).to(device)
            loss = F.cross_entropy(model(images), classes[chosen].to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            if on_step is not None:
                on_step(step + 1)
    finally:
        model.head = head
    model.zero_grad()
    return {
        "what": f"{steps} steps on {BATCH} drawn letters each (A-Z, a-z; no digits), distorted at random",
        "source": "fonts that ship with matplotlib (DejaVu, STIX, Computer Modern)",
        "private_records": 0,
    }
