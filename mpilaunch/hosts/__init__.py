"""Hosts: which nodes and slots a job may use. Pure: texts in, data out."""
