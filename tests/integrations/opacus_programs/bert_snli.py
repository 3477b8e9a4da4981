"""A BERT of which the last layer, pooler and head train, by the model's own loss; a budget, or a noise multiplier."""

import torch
from opacus import PrivacyEngine
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch.utils.data import DataLoader, TensorDataset
from transformers import BertConfig, BertForSequenceClassification


def main(sigma, batch_size, epochs, note, target_epsilon=None):
    draw = torch.Generator().manual_seed(6)
    ids = torch.randint(2, 40, (16, 9), generator=draw)
    mask, types = torch.ones(16, 9, dtype=torch.long), torch.zeros(16, 9, dtype=torch.long)
    train_dataset = TensorDataset(ids, mask, types, torch.randint(0, 3, (16,), generator=draw))
    model = BertForSequenceClassification(
        BertConfig(
            vocab_size=40, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16, num_labels=3,
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )
    )  # fmt: skip
    trainable_layers = [model.bert.encoder.layer[-1], model.bert.pooler, model.classifier]
    for p in model.parameters():
        p.requires_grad = False
    for layer in trainable_layers:
        for p in layer.parameters():
            p.requires_grad = True
    train_dataloader = DataLoader(train_dataset, batch_size=batch_size)
    model = model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    privacy_engine = PrivacyEngine()
    given = dict(module=model, optimizer=optimizer, data_loader=train_dataloader, max_grad_norm=0.1)
    if target_epsilon is None:
        model, optimizer, train_dataloader = privacy_engine.make_private(**given, noise_multiplier=sigma)
    else:
        model, optimizer, train_dataloader = privacy_engine.make_private_with_epsilon(
            **given, target_delta=1e-5, target_epsilon=target_epsilon, epochs=epochs
        )
    for _ in range(epochs):
        losses = []
        with BatchMemoryManager(
            data_loader=train_dataloader, max_physical_batch_size=6, optimizer=optimizer
        ) as memory_safe_data_loader:
            for batch in memory_safe_data_loader:
                optimizer.zero_grad()
                inputs = {
                    "input_ids": batch[0], "attention_mask": batch[1], "token_type_ids": batch[2], "labels": batch[3],
                }  # fmt: skip
                outputs = model(**inputs)
                loss = outputs[0]
                loss.backward()
                losses.append(loss.item())
                optimizer.step()
                note(model, optimizer)
        if sigma or target_epsilon:
            print(f"epsilon = {privacy_engine.get_epsilon(1e-5):.2f}")
    return privacy_engine
