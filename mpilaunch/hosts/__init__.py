"""Hosts: the nodes and slots that a job may use. Pure: text in, data out."""
