"""One campaign's process: atheris, a target, and libFuzzer's own words.

libFuzzer starts itself again by its words when it merges, and takes any that is no option of its
own for a corpus: so this is a script, and the target's name and folder are in the environment.
"""

import gc
import os
import sys
from pathlib import Path

import atheris

from fuzz import inputs, targets


def main() -> None:
    with atheris.instrument_imports(include=["nsqcy"]):
        target = targets.load(os.environ["FUZZ_TARGET"])
    gc.collect()
    gc.freeze()  # what a census collects is of the last input alone
    mutate = targets.mutator(target, atheris.Mutate)
    one = inputs.kept(target.one, Path(os.environ["FUZZ_FOLDER"]))
    atheris.Setup(sys.argv, one, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
