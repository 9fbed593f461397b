#!/usr/bin/env python3
"""A server that spans nodes, in miniature: it takes the words of `vllm serve` and computes on CPUs, with Python alone.

    mpilaunch -H node01,node02 --profile vllm --ready http://:8000/health pipeline_server.py --port 8000

Node 0 serves HTTP: /health answers once every other node has joined it at --master-addr, and /N passes N through all nodes,
each of which adds its number. The other nodes (--headless) listen on no port.
"""

from __future__ import annotations

import argparse
import socket
from http.server import BaseHTTPRequestHandler, HTTPServer


def main() -> None:
    """Serve on node 0, compute on the others."""
    parser = argparse.ArgumentParser(description="a server over several nodes")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--nnodes", type=int, default=1)
    parser.add_argument("--node-rank", type=int, default=0)
    parser.add_argument("--master-addr", default="127.0.0.1")
    parser.add_argument("--master-port", type=int, default=29501)
    parser.add_argument("--headless", action="store_true")
    options = parser.parse_args()
    if options.headless:
        work(options)
    else:
        serve(options)


def work(options: argparse.Namespace) -> None:
    """Join node 0, and add this node's number to what comes."""
    while True:
        try:
            link = socket.create_connection((options.master_addr, options.master_port), timeout=5)
            break
        except ConnectionRefusedError:
            continue  # node 0 is a little later
    link.settimeout(None)
    with link, link.makefile("rw") as lines:
        print(f"node {options.node_rank} has joined {options.master_addr}", flush=True)
        for line in lines:
            lines.write(f"{int(line) + options.node_rank}\n")
            lines.flush()


def serve(options: argparse.Namespace) -> None:
    """Wait for the other nodes, then answer requests."""
    with socket.create_server((options.master_addr, options.master_port)) as meeting:
        links = [meeting.accept()[0].makefile("rw") for _ in range(options.nnodes - 1)]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/health":
                answer = "ok"
            elif self.path == "/stop":
                answer = "bye"
                server.shutdown_requested = True
            else:
                answer = self.path.strip("/")
                for link in links:
                    link.write(f"{answer}\n")
                    link.flush()
                    answer = link.readline().strip()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(f"{answer}\n".encode())

        def log_message(self, *arguments: object) -> None:
            """Say nothing of each request."""

    class Server(HTTPServer):
        shutdown_requested = False

    with Server(("", options.port), Handler) as server:
        while not server.shutdown_requested:
            server.handle_request()


if __name__ == "__main__":
    main()
