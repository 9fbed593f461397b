"""A PMI-1 client without MPI: puts a value, waits in the barrier, and gets what every other rank has put."""

import os
import socket

connection = socket.socket(fileno=int(os.environ["PMI_FD"])).makefile("rw", newline="\n")
rank, size = int(os.environ["PMI_RANK"]), int(os.environ["PMI_SIZE"])


def ask(line: str) -> dict[str, str]:
    connection.write(line + "\n")
    connection.flush()
    return dict(word.split("=", 1) for word in connection.readline().split())


ask("cmd=init pmi_version=1 pmi_subversion=1")
name = ask("cmd=get_my_kvsname")["kvsname"]
ask(f"cmd=put kvsname={name} key=address-{rank} value=rank-{rank}-of-{os.uname().nodename}")
ask("cmd=barrier_in")
values = [ask(f"cmd=get kvsname={name} key=address-{other}")["value"] for other in range(size)]
mapping = ask(f"cmd=get kvsname={name} key=PMI_process_mapping")["value"]
print(rank, mapping, *values, flush=True)
ask("cmd=finalize")
