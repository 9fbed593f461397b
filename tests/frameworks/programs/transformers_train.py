"""Hugging Face's Trainer on CPUs: a tiny model with random weights, so nothing is downloaded."""

import os

import torch
import transformers

config = transformers.BertConfig(
    vocab_size=8, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8, max_position_embeddings=8
)
sample = {"input_ids": torch.tensor([1, 2, 3]), "labels": torch.tensor(1)}
arguments = transformers.TrainingArguments(
    "out", use_cpu=True, max_steps=2, per_device_train_batch_size=1, save_strategy="no", report_to=[], disable_tqdm=True
)
trainer = transformers.Trainer(transformers.BertForSequenceClassification(config), arguments, train_dataset=[sample] * 8)
trainer.train()
total = trainer.accelerator.reduce(torch.tensor(arguments.process_index + 1.0), "sum")
print(
    f"rank {arguments.process_index} of {arguments.world_size} sum {total.item():g} steps {trainer.state.global_step}",
    flush=True,
)
# Threads of Gloo that outlive Python abort the process, sometimes even where the program has torn all down.
os._exit(0)
