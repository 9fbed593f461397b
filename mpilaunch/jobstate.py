"""The state of a job and of its ranks, and the verdict when it has ended.

Pure tables: `{state: {event: state}}`. A finished rank is one that has exited *and* whose output has drained; finished ranks
are a set, never a counter.
"""
