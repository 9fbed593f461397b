"""What a node's environment and files say of the network to use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mpilaunch.daemon.node.network_settings import find_settings
from tests.support import trees

FILES = {
    "etc/nccl.conf": ("NCCL_DEBUG=INFO\nNCCL_SOCKET_IFNAME=eth1\n", ["NCCL_SOCKET_IFNAME"]),
    "root/.nccl.conf": ("# of the site\n NCCL_NET = Socket\n", ["NCCL_NET"]),
    "etc/openmpi/openmpi-mca-params.conf": ("btl_tcp_if_include = 10.0.0.0/8\n", ["OMPI_MCA_btl_tcp_if_include"]),
    "root/.openmpi/mca-params.conf": ("#btl_tcp_if_include=x\nbtl_tcp_if_exclude=docker0", ["OMPI_MCA_btl_tcp_if_exclude"]),
    "usr/local/etc/openmpi-mca-params.conf": ("btl_tcp_if_exclude=lo\n", ["OMPI_MCA_btl_tcp_if_exclude"]),
    "etc/ucx/ucx.conf": ("UCX_NET_DEVICES=mlx5_0:1\nUCX_TLS=rc\n", ["UCX_NET_DEVICES"]),
    "root/ucx.conf": ("UCX_NET_DEVICES=\nNCCL_NET\nnoise \xff\n", []),
}


@pytest.mark.parametrize("path", FILES)
def test_a_file_of_a_library(tmp_path: Path, path: str) -> None:
    text, expected = FILES[path]
    trees.write(tmp_path / path, text)
    assert find_settings(str(tmp_path), {"HOME": "/root"}) == expected


def test_variables_that_move_a_file(tmp_path: Path) -> None:
    trees.write(tmp_path / "site/nccl", "NCCL_SOCKET_IFNAME=x")
    trees.write(tmp_path / "opt/etc/openmpi-mca-params.conf", "btl_tcp_if_include=x")
    trees.write(tmp_path / "site/ucx.conf", "UCX_NET_DEVICES=x")
    environ = {"NCCL_CONF_FILE": "/site/nccl", "OPAL_PREFIX": "/opt", "UCX_CONFIG_DIR": "/site"}
    assert find_settings(str(tmp_path), environ) == ["NCCL_SOCKET_IFNAME", "OMPI_MCA_btl_tcp_if_include", "UCX_NET_DEVICES"]


def test_the_nodes_own_variables_but_open_mpis_which_are_an_outer_jobs(tmp_path: Path) -> None:
    environ = {"NCCL_NET_PLUGIN": "aws-ofi", "OMPI_MCA_btl_tcp_if_exclude": "x", "PATH": "/bin"}
    assert find_settings(str(tmp_path), environ) == ["NCCL_NET_PLUGIN"]


def test_no_file_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    os.mkfifo(tmp_path / "etc/nccl.conf")
    (tmp_path / "etc/ucx/ucx.conf").mkdir(parents=True)
    assert find_settings(str(tmp_path), {}) == []
