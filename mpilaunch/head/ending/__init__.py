"""The end of a job: stopping its ranks, and finding out whether a node died first."""
