"""Say who and where this rank is.

    mpilaunch -np 4 hello.py
    mpilaunch -H 'node[01-04]:2' hello.py
"""

import os
import socket

rank = os.environ.get("RANK", "0")
size = os.environ.get("WORLD_SIZE", "1")
local_rank = os.environ.get("LOCAL_RANK", "0")
local_size = os.environ.get("LOCAL_WORLD_SIZE", "1")

print(f"hello from rank {rank} of {size} on {socket.gethostname()} (rank {local_rank} of {local_size} there)")
