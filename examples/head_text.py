"""A routing head on the hidden states of a Hugging Face encoder, here a tiny one, trained by its `Trainer`."""

import tempfile
from typing import Any

import torch
from torch import Tensor, nn
from transformers import BertConfig, BertModel, Trainer, TrainingArguments, set_seed

from capsroute import RoutingHead
from capsroute.credit import for_class


class Classifier(nn.Module):
    def __init__(self, encoder: nn.Module, head: RoutingHead):
        super().__init__()
        self.encoder, self.head = encoder, head

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        states = self.encoder(input_ids, attention_mask, output_hidden_states=True).hidden_states
        scores = self.head.logits(states, mask=attention_mask)
        net = () if self.training else (self.head.credit(states, mask=attention_mask).net.sum((1, 2)),)
        return nn.functional.cross_entropy(scores, labels), scores, *net  # net: [b, words, classes]


set_seed(0)
ids, labels, mask = torch.randint(3, 40, (600, 12)), torch.randint(3, (600,)), torch.ones(600, 12).long()
ids[:, 4] = labels  # words 0 to 2 tell the class
rows: Any = [{"input_ids": i, "attention_mask": m, "labels": y} for i, m, y in zip(ids, mask, labels, strict=True)]
config = BertConfig(vocab_size=40, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64)
model = Classifier(BertModel(config, add_pooling_layer=False), RoutingHead(32, n_classes=3, n_kinds=3))
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(folder, learning_rate=1e-3, use_cpu=True, disable_tqdm=True, report_to="none")
    trainer = Trainer(model, arguments, train_dataset=rows[:400])
    print("accuracy before:", (trainer.predict(rows[400:]).predictions[0].argmax(-1) == labels[400:].numpy()).mean())
    trainer.train()
    scores, net = map(torch.from_numpy, trainer.predict(rows[400:]).predictions)
worth = for_class(net, scores)  # [b, words]
print("accuracy after:", (scores.argmax(-1) == labels[400:]).double().mean().item())
print(f"credit of the word that tells: {worth[:, 4].mean():.3f}\ncredit of another: {worth[:, 5:].mean():.3f}")
