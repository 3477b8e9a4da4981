"""Convolutions on made digits: a loader, ``make_private``, and the plain loop."""

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Digits(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 4, 5, stride=2, padding=2)
        self.second = nn.Conv2d(4, 6, 3, stride=2)
        self.hidden = nn.Linear(6 * 3 * 3, 8)
        self.head = nn.Linear(8, 10)

    def forward(self, x):
        x = torch.relu(self.first(x))
        x = torch.relu(self.second(x))
        x = torch.relu(self.hidden(x.flatten(1)))
        return self.head(x)


def main(sigma, batch_size, epochs, note):
    draw = torch.Generator().manual_seed(1)
    images, labels = torch.randn(24, 1, 14, 14, generator=draw), torch.randint(0, 10, (24,), generator=draw)
    train_loader = DataLoader(TensorDataset(images, labels), batch_size=batch_size, num_workers=0, pin_memory=False)
    model = Digits()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0)
    privacy_engine = PrivacyEngine(secure_mode=False)
    model, optimizer, train_loader = privacy_engine.make_private(
        module=model,
        optimizer=optimizer,
        data_loader=train_loader,
        noise_multiplier=sigma,
        max_grad_norm=0.8,
    )
    criterion = nn.CrossEntropyLoss()
    for _ in range(epochs):
        model.train()
        losses = []
        for _batch, (data, target) in enumerate(train_loader):
            optimizer.zero_grad()
            loss = criterion(model(data), target)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            note(model, optimizer)
        if sigma:
            print(f"epsilon = {privacy_engine.accountant.get_epsilon(delta=1e-5):.2f}")
        model.eval()
        with torch.no_grad():
            model(images).argmax(dim=1, keepdim=True)
    return privacy_engine
