"""A bag of embeddings over padded reviews; ghost clipping, whose criterion comes back; the sum of the losses."""

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader


class Reviews(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(50, 6)
        self.pool = nn.AdaptiveAvgPool1d(1)
        self.fc1 = nn.Linear(6, 6)
        self.fc2 = nn.Linear(6, 2)

    def forward(self, x):
        x = self.emb(x).transpose(1, 2)
        x = self.pool(x).squeeze(2)
        return self.fc2(torch.relu(self.fc1(x)))


def padded(batch):
    texts = nn.utils.rnn.pad_sequence([text for text, _ in batch], batch_first=True, padding_value=0)
    return texts, torch.tensor([label for _, label in batch])


def main(sigma, batch_size, epochs, note, ghost=False, reduction="mean"):
    draw = torch.Generator().manual_seed(3)
    lengths = torch.randint(3, 9, (16,), generator=draw).tolist()
    records = [(torch.randint(1, 50, (length,), generator=draw), n % 2) for n, length in enumerate(lengths)]
    train_loader = DataLoader(records, batch_size=batch_size, num_workers=0, collate_fn=padded)
    model = Reviews()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    criterion = nn.CrossEntropyLoss(reduction=reduction)
    privacy_engine = PrivacyEngine()
    given = dict(module=model, optimizer=optimizer, data_loader=train_loader, noise_multiplier=sigma, max_grad_norm=0.3)
    if ghost:
        model, optimizer, criterion, train_loader = privacy_engine.make_private(
            **given, criterion=criterion, loss_reduction=reduction, grad_sample_mode="ghost"
        )
    else:
        model, optimizer, train_loader = privacy_engine.make_private(**given, loss_reduction=reduction)
    for _ in range(epochs):
        for data, label in train_loader:
            optimizer.zero_grad()
            predictions = model(data)
            loss = criterion(predictions, label)
            loss.backward()
            optimizer.step()
            note(model, optimizer)
    if sigma:
        print(f"epsilon = {privacy_engine.get_epsilon(1e-5):.2f}")
    return privacy_engine
