"""Compile cext/nsqcy/**/*.pyx into the packages of nsqcy; everything else is in pyproject.toml.

A package has one module, core.pyx, which includes the other files; those that it does not include
are separate modules.
"""

import os
import re
import runpy
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

# Line tracing, for coverage of the .pyx files. coverage.py looks for the .c file next to the .pyx
# file, so only a traced build may write there.
TRACE = os.environ.get("NSQCY_TRACE") == "1"
# Invariant checks and live-object counters, asserted by the test suite.
DEBUG = os.environ.get("NSQCY_DEBUG") == "1"
# AddressSanitizer and UndefinedBehaviorSanitizer (see `make asan`).
ASAN = os.environ.get("NSQCY_ASAN") == "1"
# For the fuzzing campaigns in tests/fuzz: clang reports coverage to libFuzzer (see `make fuzz`).
FUZZ = os.environ.get("NSQCY_FUZZ") == "1"
# For an editable install next to modules that `build_ext --inplace` has built: otherwise the
# install would compile all of them again, into a temporary directory.
BUILT = os.environ.get("NSQCY_BUILT") == "1"

macros: list[tuple[str, str | None]] = []
if TRACE:
    macros.append(("CYTHON_TRACE_NOGIL", "1"))
if DEBUG:
    macros.append(("NSQCY_DEBUG", "1"))

compile_args = ["-O2", "-Wall", "-Wextra", "-Wno-unused-function", "-Wno-unused-parameter"]
link_args = ["-pthread"]
if ASAN:
    sanitizers = ["-fsanitize=address,undefined", "-fno-omit-frame-pointer"]
    compile_args += sanitizers
    link_args += sanitizers
if not (DEBUG or TRACE or ASAN or FUZZ):
    compile_args.append("-g0")  # a third of the compiler's work; function names remain
if not FUZZ:
    # GCC's own limit is 70, which leaves what each message needs as calls where it has two callers.
    compile_args.append("--param=max-inline-insns-single=400")
if FUZZ:
    compile_args += ["-fsanitize=fuzzer-no-link,address", "-fno-omit-frame-pointer", "-g1"]


def included(pyx: Path) -> list[Path]:
    return [pyx.parent / name for name in re.findall('^include "(.+)"', pyx.read_text(), re.M)]


def size(pyx: Path) -> int:
    return sum(path.stat().st_size for path in [pyx, *included(pyx)])


sources = set(Path("cext/nsqcy").rglob("*.pyx"))
modules = sources.difference(*map(included, sources))

extensions = [
    Extension(
        ".".join(pyx.relative_to("cext").with_suffix("").parts),
        [str(pyx)],
        include_dirs=["cext/include"],
        define_macros=macros,
        extra_compile_args=compile_args,
        extra_link_args=link_args,
    )
    for pyx in sorted(modules, key=size, reverse=True)  # the one that takes longest starts first
    if not BUILT
]


def write_commit(folder: str) -> None:
    """Write the commit of this checkout or sdist for nsqcy/commit.py."""
    known = runpy.run_path("nsqcy/commit.py")["commit"]()
    Path(folder, "nsqcy", "commit.txt").write_text(f"{known}\n")


class BuildPy(build_py):
    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            write_commit(self.build_lib)


class Sdist(sdist):
    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        write_commit(base_dir)


setup(
    cmdclass={"build_py": BuildPy, "sdist": Sdist},
    ext_modules=cythonize(
        extensions,
        include_path=["cext"],
        build_dir=None if TRACE else "build/cython",
        emit_linenums=FUZZ,
        annotate=os.environ.get("NSQCY_ANNOTATE") == "1",
        nthreads=os.cpu_count() or 1,
        compiler_directives={
            "language_level": 3,
            "auto_pickle": False,
            "boundscheck": False,
            "wraparound": False,
            "cdivision": True,
            "initializedcheck": False,
            "linetrace": TRACE,
        },
    ),
    options={"build_ext": {"parallel": os.cpu_count()}},  # `pip install` gives no such option
)
