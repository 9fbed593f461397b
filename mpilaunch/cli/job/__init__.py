"""From the settings of a command line to its JobSpec, in one direction.

`inputs` reads once what the files that the user names and this machine say. All other modules are pure: `nodes` selects the
nodes, `ranks` maps the ranks onto them, `environment` makes the variables, and `make` builds the JobSpec. Contacts no node.
"""
