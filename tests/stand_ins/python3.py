"""python3 of a simulated host: `-m venv FOLDER` creates a venv with the simulated pip."""

import os
import sys
from pathlib import Path

PIP = Path(__file__).with_name("pip.py")


def main() -> None:
    match sys.argv[1:]:
        case ["-m", "venv", folder]:
            pip = Path(folder) / "bin/pip"
            pip.parent.mkdir(parents=True)
            pip.write_text(f'#!/bin/sh\nexec {sys.executable} {PIP} {folder} "$@"\n')
            pip.chmod(0o755)
        case words:
            os.execv(sys.executable, [sys.executable, *words])


if __name__ == "__main__":
    main()
