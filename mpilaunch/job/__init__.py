"""The job: its description, its state, and the decisions about it. Pure: data in, decisions out."""
