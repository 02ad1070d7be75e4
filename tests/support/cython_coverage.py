"""Cython's plugin for coverage.py, extended for .pyx files that core.pyx includes.

Cython's own plugin looks for the C file of a .pyx file by its name, but the code of an included
file is in core.c.
"""

from pathlib import Path

from Cython.Coverage import Plugin


class IncludingPlugin(Plugin):
    def _find_source_files(self, filename: str) -> tuple[str | None, str | None]:
        found: tuple[str | None, str | None] = super()._find_source_files(filename)
        if found[0] is None and filename.endswith(".pyx"):
            return super()._find_source_files(str(Path(filename).with_name("core.pyx")))
        return found


def coverage_init(registry, options):  # type: ignore[no-untyped-def]
    plugin = IncludingPlugin()
    registry.add_configurer(plugin)
    registry.add_file_tracer(plugin)
