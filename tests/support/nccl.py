"""A server that speaks as NCCL does where it is asked for its report (src/ras/client.cc), or badly."""

SERVER = """
import socket, sys, time
kind = sys.argv[1]
server = socket.create_server(("127.0.0.1", int(sys.argv[2])))
print(server.getsockname()[1], flush=True)
while True:
    client, _ = server.accept()
    asked = []
    if kind == "silent":
        time.sleep(60)
    with client, client.makefile("rwb", buffering=0) as lines:
        for line in iter(lines.readline, b""):
            asked.append(line)
            if line.startswith(b"CLIENT PROTOCOL"):
                lines.write(b"HTTP/1.1 400\\\\n" if kind == "other" else b"SERVER PROTOCOL 2\\n")
            elif line.startswith(b"TIMEOUT"):
                lines.write(b"OK\\n")
            elif kind == "endless":
                while True: lines.write(b"x" * 65536)
            else:
                lines.write(b"Job summary: 2 nodes\\n\\xff " + b"".join(asked))
                break
"""
"""Its arguments: "good", "silent", "other" or "endless", and the port, 0 for any, which it prints."""
