"""The process of one campaign: atheris, a target, and libFuzzer's own arguments.

For a merge, libFuzzer restarts itself with its arguments, and treats every unknown argument as a
corpus. This is therefore a script that gets the target's name and directory from the environment.
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
    # A count of live objects then covers only the last input.
    gc.freeze()
    mutate = targets.mutator(target, atheris.Mutate)
    one = inputs.kept(target.one, Path(os.environ["FUZZ_FOLDER"]))
    atheris.Setup(sys.argv, one, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
