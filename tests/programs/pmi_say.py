"""Say PMI-1 to the launcher, whatever it is: each argument is sent as it is with a newline, and its answer printed.

An argument that begins with `RANK:` is only for that rank.
"""

import os
import socket
import sys

rank = os.environ["PMI_RANK"]
connection = socket.socket(fileno=int(os.environ["PMI_FD"]))
answers = connection.makefile("r")
for words in ["cmd=init pmi_version=1 pmi_subversion=1", *sys.argv[1:], "cmd=finalize"]:
    only, colon, rest = words.partition(":")
    if colon and only.isdecimal():
        if only != rank:
            continue
        words = rest
    connection.sendall(os.fsencode(words) + b"\n")
    answer = answers.readline().rstrip("\n")
    if words.startswith(("mcmd=spawn", "cmd=lookup", "cmd=publish", "cmd=unpublish", "cmd=get_universe", "cmd=get_appnum")):
        print(rank, answer, flush=True)
