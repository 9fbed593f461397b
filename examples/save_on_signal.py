"""Save the state on a signal, and begin with the newest set: what mpilaunch's checkpoints ask of a program.

    mpilaunch -np 4 --checkpoint-prefix /shared/sets --checkpoint-interval 10m examples/save_on_signal.py 1000

The same command again continues where the last whole set was saved. Needs nothing but Python; docs/checkpoints.md explains it.
"""

import os
import signal
import sys
import time

RANK = os.environ["RANK"]
asked = False


def ask(number, frame):
    """Note that a checkpoint is wanted: the state is saved between two steps, where it is whole."""
    global asked
    asked = True


def write(path, text):
    """Write a file that is there whole or not at all, also when the machine fails at this moment."""
    with open(path + ".part", "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.rename(path + ".part", path)


def save(step):
    """Save the state, then leave the mark that says so."""
    folder = os.environ["MPILAUNCH_CHECKPOINT_DIR"]
    write(os.path.join(folder, f"state-{RANK}"), str(step))
    write(os.path.join(folder, f"rank-{RANK}.saved"), "")


def main():
    """Count to the number of steps that is asked for."""
    global asked
    signal.signal(getattr(signal, os.environ.get("CHECKPOINT_SIGNAL", "SIGUSR1")), ask)
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    first = 0
    if "MPILAUNCH_RESTART_DIR" in os.environ:
        with open(os.path.join(os.environ["MPILAUNCH_RESTART_DIR"], f"state-{RANK}")) as file:
            first = int(file.read())
    print(f"rank {RANK} begins at step {first}", flush=True)
    for step in range(first, steps):
        if asked:
            asked = False
            save(step)
            print(f"rank {RANK} has saved step {step}", flush=True)
        time.sleep(0.01)
    print(f"rank {RANK} has done {steps} steps", flush=True)


if __name__ == "__main__":
    main()
