"""A PyTorch job that does nothing but to find its peers: each rank gives 1, and rank 0 says what all have."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
count = torch.ones(1)
dist.all_reduce(count)
if dist.get_rank() == 0 and int(count) == dist.get_world_size():
    print(f"{int(count)} ranks agree")
dist.barrier()
dist.destroy_process_group()
