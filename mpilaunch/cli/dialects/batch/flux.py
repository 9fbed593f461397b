"""x"""

from mpilaunch.cli.dialects.rows import Dialect

DIALECT = Dialect(name="flux", title="flux", owner="flux's", rows=())
