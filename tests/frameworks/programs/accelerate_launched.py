"""What Accelerate makes of the variables of its launcher: the world, a sum over it, if it wraps a model, and the device."""

import os

import torch
from accelerate import Accelerator

accelerator = Accelerator()
total = accelerator.reduce(torch.tensor([accelerator.process_index + 1.0]))
place = f"rank {accelerator.process_index} of {accelerator.num_processes} local {accelerator.local_process_index}"
model = "plain" if isinstance(accelerator.prepare(torch.nn.Linear(1, 1)), torch.nn.Linear) else "DDP"
print(f"{place} sum {total.item():g} {model} on {accelerator.device.type} {accelerator.mixed_precision}", flush=True)
# Threads of Gloo that outlive Python abort the process, sometimes even where the program has torn all down.
os._exit(0)
