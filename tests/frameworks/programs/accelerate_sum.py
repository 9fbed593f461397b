"""Accelerate on CPUs: two steps of training, then a sum."""

import os

import accelerate
import torch

accelerator = accelerate.Accelerator(cpu=True)
model = torch.nn.Linear(2, 1)
data = torch.utils.data.DataLoader(torch.arange(16.0).reshape(8, 2), batch_size=2)
model, optimizer, data = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.01), data)
steps = 0
for batch in data:
    accelerator.backward(model(batch).square().mean())
    optimizer.step()
    optimizer.zero_grad()
    steps += 1
total = accelerator.reduce(torch.tensor(accelerator.process_index + 1.0), "sum")
print(f"rank {accelerator.process_index} of {accelerator.num_processes} sum {total.item():g} steps {steps}", flush=True)
# Threads of Gloo that outlive Python abort the process, sometimes even where the program has torn all down.
os._exit(0)
