"""Makes the start of Spark's Python processes cheap; Python imports it when it starts.

Spark starts dozens of them. They would import pyspark from an archive, whose modules Python
compiles on each import, although the same modules are installed.
"""

import sys

sys.path[:] = [each for each in sys.path if not each.endswith(("pyspark.zip", "-src.zip"))]
