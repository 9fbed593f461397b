"""x"""

from mpilaunch.cli.dialects.rows import Dialect

DIALECT = Dialect(name="aprun", title="aprun", owner="aprun's", rows=())
