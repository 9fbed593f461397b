"""Defaults that several parts of mpilaunch share, each written once. It imports nothing: `mpilaunch-rsh` starts with it too."""

START_TIMEOUT, START_IN_POD = 60.0, 300.0
"""Seconds of --start-timeout; in a pod, whose workers' images may have to be pulled first."""
CONNECT_TIMEOUT = 30.0
"""Seconds that making one connection to a node may take."""
RECONNECT_TIMEOUT, RECONNECT_IN_PODS = 10.0, 60.0
"""Seconds of --reconnect-timeout. A restarted API server loses all streams and takes longer to come back than an sshd."""
MPI_INIT_TIMEOUT, GRACE, HEARTBEAT, DRAIN = 600.0, 10.0, 30.0, 1.0
"""Seconds of --mpi-init-timeout, --grace, --heartbeat and --drain."""

MASTER_PORT = 29500
"""torch's default of MASTER_PORT, and that of the launchers that follow it."""

RETRIED = ("connection-closed", "pod-unknown", "pod-starting", "cluster-unreachable")
RETRIED_PATIENTLY = (*RETRIED, "host-unknown", "connection-refused", "unreachable", "timeout")
"""Causes (`agent.CAUSES`) for which a node is tried again; patiently in a cluster of pods, where a launcher may start before
the workers and their sshd."""
