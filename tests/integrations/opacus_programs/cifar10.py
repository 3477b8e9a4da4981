"""A small residual network, whose BatchNorm ``ModuleValidator.fix`` replaces; pieces; a scheduler; bounds by parameter."""

import torch
from opacus import PrivacyEngine
from opacus.utils.batch_memory_manager import BatchMemoryManager
from opacus.validators import ModuleValidator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)

    def forward(self, x):
        return torch.relu(self.norm(self.convolution(x)) + x)


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8)
        self.blocks = nn.Sequential(Block(8), Block(8))
        self.head = nn.Linear(8, 10)

    def forward(self, x):
        x = self.blocks(torch.relu(self.norm(self.stem(x))))
        return self.head(x.mean(dim=(2, 3)))


def main(sigma, batch_size, epochs, note, clip_per_layer=False):
    draw = torch.Generator().manual_seed(2)
    images, labels = torch.randn(24, 3, 8, 8, generator=draw), torch.randint(0, 10, (24,), generator=draw)
    train_loader = DataLoader(TensorDataset(images, labels), batch_size=batch_size)
    model = Residual()
    assert len(ModuleValidator.validate(model, strict=False)) == 3
    model = ModuleValidator.fix(model)
    assert ModuleValidator.is_valid(model) and ModuleValidator.validate(model, strict=False) == []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    bounds = 0.7
    if clip_per_layer:
        parameters = [p for p in model.parameters() if p.requires_grad]
        bounds = [0.2 + 0.05 * n for n in range(len(parameters))]
    privacy_engine = PrivacyEngine(accountant="rdp")
    model, optimizer, train_loader = privacy_engine.make_private(
        module=model,
        optimizer=optimizer,
        data_loader=train_loader,
        noise_multiplier=sigma,
        max_grad_norm=bounds,
        clipping="per_layer" if clip_per_layer else "flat",
    )
    criterion = nn.CrossEntropyLoss()
    for _ in range(epochs):
        with BatchMemoryManager(
            data_loader=train_loader, max_physical_batch_size=5, optimizer=optimizer
        ) as memory_safe_data_loader:
            for data, target in memory_safe_data_loader:
                assert len(data) <= 5
                optimizer.zero_grad()
                output = model(data)
                loss = criterion(output, target)
                loss.backward()
                optimizer.step()
                note(model, optimizer)
        scheduler.step()
    if sigma:
        print(f"epsilon = {privacy_engine.get_epsilon(1e-5):.2f}")
    return privacy_engine
