"""Train with PyTorch so that the job may lose a node at any moment and continue where it was.

    mpilaunch -H 'node[01-04]:2' --spares 1 --max-restarts 5 torch_resume.py /shared/run1.pt
    mpilaunch -H 'node[01-04]:2' --nnodes 2:4 --max-restarts 5 torch_resume.py /shared/run1.pt

What makes a program resumable is marked with 1, 2, 3. The checkpoint must be where all nodes see it. Nothing here knows which
launcher started it. The network learns z = sin(3x) * cos(2y), as in torch_ddp.py.
"""

import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.nn  # before there is a group: DDP imports it too, and what it defines keeps the group of that time
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 200
EVERY = 1  # steps between checkpoints; a real program saves every few minutes
BATCH = 256  # samples of a rank in a step


def samples(step, rank):
    # 1. What a step sees depends on nothing but its number and the rank's: the data go on where they were, too.
    generator = torch.Generator().manual_seed(step * 100_003 + rank)
    points = torch.rand(BATCH, 2, generator=generator) * 2 - 1
    x, y = points[:, :1], points[:, 1:]
    return points, torch.sin(3 * x) * torch.cos(2 * y)


def load(path, network, optimizer):
    """Return the step to continue after, 0 when there is no checkpoint yet."""
    # 2. Every rank begins with the newest checkpoint, also in the first attempt, which may follow an older job.
    if not os.path.exists(path):
        return 0
    checkpoint = torch.load(path, weights_only=True)
    network.load_state_dict(checkpoint["network"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    return checkpoint["step"]


def save(path, step, network, optimizer):
    # 3. One rank saves, and a new file takes the old one's place: whenever the job is killed, there is a whole one.
    partial = f"{path}.{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}.part"
    torch.save({"step": step, "network": network.state_dict(), "optimizer": optimizer.state_dict()}, partial)
    os.replace(partial, path)


def train(path):
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    done = load(path, network, optimizer)
    dist.barrier()  # nobody saves the next one while others still read this one
    model = DistributedDataParallel(network)
    if rank == 0 and done:
        print(f"continues after step {done} on {size} ranks", flush=True)

    for step in range(done + 1, STEPS + 1):
        points, truth = samples(step, rank)
        loss = nn.functional.mse_loss(model(points), truth)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        if rank == 0:
            print(f"step {step}: loss {total.item() / size:.6f}", flush=True)
            if step % EVERY == 0 or step == STEPS:
                save(path, step, network, optimizer)


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: torch_resume.py CHECKPOINT")
    dist.init_process_group("gloo")
    train(sys.argv[1])
    dist.barrier()
    # Now that the model is gone, which holds the group, this waits for gloo's threads: a rank that exits under them can abort.
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
