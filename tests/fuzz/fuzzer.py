"""One campaign's process: atheris, a target, and libFuzzer's own words.

libFuzzer starts itself again by its words when it merges, and takes any that is no option of its
own for a corpus: so this is a script, and the target's name is in the environment.
"""

import gc
import os
import sys

import atheris
from fuzz import targets


def main() -> None:
    with atheris.instrument_imports(include=["nsqcy"]):
        target = targets.load(os.environ["FUZZ_TARGET"])
    gc.collect()
    gc.freeze()  # what a census collects is of the last input alone
    mutate = targets.mutator(target, atheris.Mutate)
    atheris.Setup(sys.argv, target.one, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
