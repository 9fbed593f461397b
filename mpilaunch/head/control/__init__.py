"""Requests about a running job, from other processes of its user: one private socket for each head.

`place` finds the sockets, `requests` is the protocol; `control` listens, and the rest of the head's side is loaded by the first
connection; `client` asks.
"""
