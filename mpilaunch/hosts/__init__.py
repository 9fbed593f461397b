"""Hosts: hostfiles, host lists, slot maps and the allocation made of them; `schedulers` reads those of batch systems."""
