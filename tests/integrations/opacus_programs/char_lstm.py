"""Names as bytes, padded in the collate function; a recurrent layer of the library; Adam."""

import torch
from opacus import PrivacyEngine
from opacus.layers import DPLSTM
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

NAMES = ["ana", "boris", "chen", "dora", "emil", "fatima", "gus", "hana", "ivo", "jun", "kofi", "lena"]


class Names(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(128, 6)
        self.rnn = DPLSTM(6, 7, num_layers=2, bidirectional=False, batch_first=True)
        self.head = nn.Linear(7, 3)

    def forward(self, x, hidden=None):
        x = self.embedding(x)
        x, _ = self.rnn(x, hidden)
        return self.head(x[:, -1, :])


def padded(batch):
    texts = pad_sequence([text for text, _ in batch], batch_first=True, padding_value=0)
    return texts, torch.stack([label for _, label in batch]).long()


def main(sigma, batch_size, epochs, note):
    records = [(torch.tensor(list(name.encode())), torch.tensor(n % 3)) for n, name in enumerate(NAMES)]
    train_loader = DataLoader(records, batch_size=batch_size, pin_memory=False, collate_fn=padded)
    model, draw = Names(), torch.Generator().manual_seed(7)
    for _, p in sorted(model.named_parameters()):
        nn.init.normal_(p, std=0.3, generator=draw)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0)
    privacy_engine = PrivacyEngine()
    model, optimizer, train_loader = privacy_engine.make_private(
        module=model, optimizer=optimizer, data_loader=train_loader, noise_multiplier=sigma, max_grad_norm=0.15
    )
    for _ in range(epochs):
        for x, y in train_loader:
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            note(model, optimizer)
            optimizer.zero_grad()
        if privacy_engine and sigma:
            print(f"epsilon = {privacy_engine.get_epsilon(delta=8e-5):.2f}")
    return privacy_engine
