"""A private discriminator and a plain generator. ``apart``: two steps a batch, one on generated images and one on real ones."""

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(1, 4, 4, 2, 1, bias=False),
            nn.LeakyReLU(0.2),
            nn.Conv2d(4, 6, 4, 2, 1, bias=False),
            nn.GroupNorm(2, 6),
            nn.LeakyReLU(0.2),
            nn.Conv2d(6, 1, 2, 1, 0, bias=False),
        )

    def forward(self, images, generated=None):
        scores = self.main(images).view(-1, 1).squeeze(1)
        return scores if generated is None else (scores, self.main(generated).view(-1, 1).squeeze(1))


def main(sigma, batch_size, epochs, note, apart=False):
    draw = torch.Generator().manual_seed(4)
    dataloader = DataLoader(TensorDataset(torch.rand(16, 1, 8, 8, generator=draw)), batch_size=batch_size)
    netD = Discriminator()
    netG = nn.Sequential(nn.ConvTranspose2d(5, 4, 4, 1, 0), nn.ReLU(), nn.ConvTranspose2d(4, 1, 4, 2, 1), nn.Tanh())
    optimizerD = torch.optim.SGD(netD.parameters(), lr=0.1)
    optimizerG = torch.optim.Adam(netG.parameters(), lr=0.001, betas=(0.5, 0.999))
    criterion = nn.BCEWithLogitsLoss()
    privacy_engine = PrivacyEngine()
    netD, optimizerD, dataloader = privacy_engine.make_private(
        module=netD, optimizer=optimizerD, data_loader=dataloader, noise_multiplier=sigma, max_grad_norm=0.5
    )
    seed = torch.Generator().manual_seed(5)
    for _ in range(epochs):
        for data in dataloader:
            optimizerD.zero_grad()
            real_data = data[0]
            size = real_data.size(0)
            fake = netG(torch.randn(size, 5, 1, 1, generator=seed))
            if apart:
                errD_fake = criterion(netD(fake.detach()), torch.zeros(size))
                errD_fake.backward()
                optimizerD.step()
                note(netD, optimizerD)
                optimizerD.zero_grad()
                errD_real = criterion(netD(real_data), torch.ones(size))
                errD_real.backward()
            else:
                real, generated = netD(real_data, fake.detach())
                errD = criterion(real, torch.ones(size)) + criterion(generated, torch.zeros(size))
                errD.backward()
            optimizerD.step()
            note(netD, optimizerD)
            optimizerD.zero_grad()

            optimizerG.zero_grad()
            errG = criterion(netD(fake), torch.ones(size))
            errG.backward()
            optimizerG.step()
            note(netG, optimizerG)
        optimizerD.zero_grad()
        if sigma:
            print(f"epsilon = {privacy_engine.get_epsilon(1e-5):.2f}")
    return privacy_engine
