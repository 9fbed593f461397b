"""x"""

from mpilaunch.cli.dialects.rows import Dialect

DIALECT = Dialect(name="jsrun", title="jsrun", owner="jsrun's", rows=())
