"""Horovod as its documents start it, as often as the argument says; only with Gloo can it start again in the same processes."""

import sys

import horovod.torch as hvd
import torch

for _ in range(int(sys.argv[1])):
    hvd.init()
    total = hvd.allreduce(torch.tensor([hvd.rank() + 1.0]), op=hvd.Sum, name="total")
    print(f"rank {hvd.rank()} of {hvd.size()} cross {hvd.cross_rank()} of {hvd.cross_size()} sum {total.item():g}", flush=True)
    hvd.shutdown()
