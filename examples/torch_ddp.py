"""Train a small network with PyTorch's DistributedDataParallel, on CPUs over gloo.

    mpilaunch -np 4 torch_ddp.py
    mpilaunch -H node01:2,node02:2 torch_ddp.py

Nothing here knows which launcher started it: torch finds its place by `env://` (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT).
The network learns z = sin(3x) * cos(2y) from noisy samples; each rank makes its own samples, and DDP averages the gradients.
At the end rank 0 checks the loss on samples that nobody trained on, and all ranks check that they hold the same network.
"""

import sys

import torch
import torch.distributed as dist
import torch.distributed.nn  # before there is a group: DDP imports it too, and what it defines keeps the group of that time
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 400
BATCH = 256  # samples of a rank in a step
ENOUGH = 0.01  # the mean square of z, which a network that learned nothing leaves, is 0.21


def samples(count, generator):
    points = torch.rand(count, 2, generator=generator) * 2 - 1
    x, y = points[:, :1], points[:, 1:]
    return points, torch.sin(3 * x) * torch.cos(2 * y)


def train(rank, size):
    """Return the network and whether all ranks hold the same one."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    model = DistributedDataParallel(network)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)

    own = torch.Generator().manual_seed(1000 + rank)
    for step in range(1, STEPS + 1):
        points, truth = samples(BATCH, own)
        noise = torch.randn(truth.shape, generator=own) * 0.05
        loss = nn.functional.mse_loss(model(points), truth + noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if step == 1 or step % 100 == 0:
            total = loss.detach().clone()
            dist.all_reduce(total)
            if rank == 0:
                print(f"step {step:3}: loss {total.item() / size:.4f}", flush=True)

    mine = nn.utils.parameters_to_vector(network.parameters()).detach()
    everyones = [torch.empty_like(mine) for _ in range(size)]
    dist.all_gather(everyones, mine)
    return network, all(torch.equal(mine, other) for other in everyones)


def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    network, same = train(rank, size)
    dist.barrier()
    # Now that the model is gone, which holds the group, this waits for gloo's threads: a rank that exits under them can abort.
    dist.destroy_process_group()

    with torch.no_grad():
        points, truth = samples(10000, torch.Generator().manual_seed(1))
        final = nn.functional.mse_loss(network(points), truth).item()
    if rank == 0:
        count = sum(parameter.numel() for parameter in network.parameters())
        print(f"{size} ranks: loss {final:.4f} on new samples, the same {count} parameters on all: {same}", flush=True)
    if not same:
        sys.exit(f"rank {rank}: the ranks do not hold the same network")
    if final > ENOUGH:
        sys.exit(f"rank {rank}: the loss is {final:.4f}, above {ENOUGH}: nothing was learned")


if __name__ == "__main__":
    main()
