"""A linear model that DeepSpeed trains on CPUs; prints each rank, the first argument, and the sum of the weights."""

import os
import sys

import deepspeed
import torch

deepspeed.init_distributed(dist_backend="gloo")
torch.manual_seed(deepspeed.comm.get_rank())
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
config = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 0}}
engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
for _ in range(3):
    loss = engine(torch.randn(2, 4)).pow(2).mean()
    engine.backward(loss)
    engine.step()
total = sum(float(weights.detach().double().sum()) for weights in model.parameters())
place = f"rank {os.environ['RANK']} of {deepspeed.comm.get_world_size()} local {os.environ['LOCAL_RANK']}"
# In one piece: under PYTHONUNBUFFERED print writes the newline by itself, and DeepSpeed's ranks share a pipe.
sys.stdout.write(f"{place} argument {sys.argv[1:2]} weights {total:.6f}\n")
sys.stdout.flush()
# Threads of Gloo that outlive Python abort the process, sometimes even where the program has torn all down.
os._exit(0)
