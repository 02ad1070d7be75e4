"""`python -m nsqcy.spark FILE.zip`: writes a file for `spark-submit --py-files`.

The file contains only the modules of `format("nsq")`. Executors also need pyarrow.
"""

import sys
import zipfile
from pathlib import Path

HOME = Path(__file__).parents[2]
SHIPPED = (
    "nsqcy/__init__.py",
    "nsqcy/options/*.py",
    "nsqcy/spark/*.py",
    "pyspark_nsq/__init__.py",
)


def pack(target: Path) -> None:
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as packed:
        for pattern in SHIPPED:
            for path in sorted(HOME.glob(pattern)):
                packed.write(path, path.relative_to(HOME))


def main(argv: list[str]) -> int:
    if len(argv) != 1 or not argv[0].endswith(".zip"):
        print("usage: python -m nsqcy.spark FILE.zip", file=sys.stderr)
        return 2
    pack(Path(argv[0]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
