"""For Python programs: `run` launches a job, and a plugin of pytest runs tests as the ranks of jobs."""

from mpilaunch.api.job import JobFailed, Report, run

__all__ = ["JobFailed", "Report", "run"]
