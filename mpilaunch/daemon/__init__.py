"""The daemon on a node: starts the ranks, carries their output and input, reaps and ends them. It travels to every node.

Standard library only, Python 3.8; it imports nothing of ours but `mpilaunch.daemon`, `mpilaunch.wire` and `mpilaunch.later`.
What is done here is done before any of its modules is loaded.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # the C half of `signal`
import gc

from mpilaunch.later import put_off, put_off_re

gc.disable()  # loading makes hardly any garbage; `main` goes on with it
# Its other half only makes members of an enumeration out of numbers.
put_off("signal", vars(_signal))
put_off_re()
