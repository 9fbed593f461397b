"""The start of a job: worlds of ranks prepared and started on their nodes, in the order of roles."""
