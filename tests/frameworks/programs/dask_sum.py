"""dask-mpi: rank 0 is the scheduler, rank 1 runs the client, the others are workers."""

import dask.array
import dask_mpi
import distributed

dask_mpi.initialize(nthreads=1, dashboard=False, exit=True)
with distributed.Client() as client:
    client.wait_for_workers(1, timeout=60)
    workers = client.scheduler_info()["workers"]
    total = dask.array.ones(100, chunks=10).sum().compute()
    print(f"workers {len(workers)} sum {total:g}", flush=True)
