"""Read this rank's shard of the data and train on it; the program in the picture of a failure, where one shard is missing."""

import os
import time

rank = os.environ["RANK"]
print(f"reading shard {rank}", flush=True)
time.sleep(0.2)
with open(f"data/shard-{rank}") as shard:
    data = shard.read()
time.sleep(600)
