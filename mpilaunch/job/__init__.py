"""The job: its `spec`, the `state` of its ranks, `hints` for failed ranks, `restarts`, and the ranks' `environment`.

Pure: data in, decisions out.
"""
