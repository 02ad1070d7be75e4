"""Fuzzing campaigns for the parsers, guided by coverage of C and Python code: `make fuzz`.

    python -m fuzz.campaign --minutes=10 --only=wire,http [--keep]

libFuzzer (through atheris) mutates inputs of the corpus, and keeps each input that reaches new
code. `make` builds the compiled parts for fuzzing, with AddressSanitizer. The results of a campaign
are in build/fuzz/<target>/: `found/`, and for each failure `crash-*` or `timeout-*`, with the
exception in `crash-*.txt`. At the end, the failures are listed. `--keep` stores a minimal set of
inputs with the same coverage in tests/fuzz/corpus/; the ordinary tests replay them. The targets are
in tests/fuzz/targets/.
"""

import argparse
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

from fuzz import inputs, reach, targets

ROOT = Path(__file__).parents[2]
FUZZER = ROOT / "tests/fuzz/fuzzer.py"
CORPUS = ROOT / "tests/fuzz/corpus"
WORK = ROOT / "build/fuzz"
MAX_BYTES = 4096  # maximum size of an input, in bytes
MAX_KEPT = 24_000  # maximum size of a target's corpus in the repository, in bytes
MAX_SECONDS = 20  # maximum seconds for one input; a longer run counts as a hang
MAX_MEMORY = 1500  # MB


def environment() -> dict[str, str]:
    """Return the environment of a process with instrumented modules. It disables Python's own
    allocator, which would hide errors."""
    library = Path(sysconfig.get_paths()["platlib"]) / "asan_with_fuzzer.so"
    return {
        **os.environ,
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}",
        "LD_PRELOAD": str(library),
        "PYTHONMALLOC": "malloc",
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:quarantine_size_mb=64",
    }


def run(name: str, *words: str, log: Path) -> bool:
    """Run libFuzzer with these arguments in a separate process; return whether no input failed."""
    folder = log.parent
    with log.open("wb") as file:
        command = [sys.executable, str(FUZZER), *words, f"-artifact_prefix={folder}/"]
        named = {**os.environ, "FUZZ_TARGET": name, "FUZZ_FOLDER": str(folder)}
        code = subprocess.run(command, cwd=ROOT, env=named, stdout=file, stderr=file).returncode
    if code:
        inputs.save_running(folder)
        print(f"{name}: FAILED, see {log}", flush=True)
    return code == 0


def begin(name: str) -> Path:
    """Create the campaign's directory with its seeds, and return it."""
    folder = WORK / name
    (folder / "found").mkdir(parents=True, exist_ok=True)
    (folder / "seeds").mkdir(exist_ok=True)
    target = targets.load(name)
    for number, data in enumerate(target.seeds()):
        (folder / "seeds" / str(number)).write_bytes(data[:MAX_BYTES])
    (folder / "words").write_text("".join(f'"{escaped(word)}"\n' for word in target.WORDS))
    return folder


def escaped(word: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in word)


def fuzz(name: str, seconds: int) -> bool:
    """Run a campaign; return whether it found no failure."""
    folder = begin(name)
    corpora = [str(each) for each in (folder / "found", CORPUS / name, folder / "seeds")]
    log = folder / "log"
    good = run(
        name,
        f"-max_total_time={seconds}",
        f"-max_len={MAX_BYTES}",
        f"-timeout={MAX_SECONDS}",
        f"-rss_limit_mb={MAX_MEMORY}",
        f"-dict={folder / 'words'}",
        *(each for each in corpora if os.path.isdir(each)),
        log=log,
    )
    text = log.read_text(errors="replace")
    last = re.findall(r"^#(\d+)\s.*cov: (\d+).*exec/s: (\d+) rss: (\d+)Mb", text, re.MULTILINE)
    if last:
        count, edges, speed, memory = last[-1]
        print(f"{name}: {count} executions, {speed}/s, {edges} edges, {memory} MB", flush=True)
    return good


def keep(name: str) -> bool:
    """Keep the smallest inputs with the same coverage as all known ones, up to a maximum size.
    Return whether no input failed: after a failure, the coverage of later inputs would be
    unknown."""
    folder = begin(name)
    control = folder / "control"
    corpora = [folder / "found", CORPUS / name, folder / "seeds"]
    known = [str(path) for each in corpora if each.is_dir() for path in sorted(each.iterdir())]
    control.write_text("\n".join([str(len(known)), "0", *known, ""]))
    # The inner half of a merge: it records the coverage of each input.
    words = ["-merge_inner=2", f"-merge_control_file={control}", f"-timeout={MAX_SECONDS}"]
    if not run(name, *words, log=folder / "merge.log"):
        return False
    chosen = reach.minimum(control.read_text(), MAX_KEPT)
    contents = [Path(path).read_bytes() for path in chosen]
    kept = CORPUS / name
    kept.mkdir(parents=True, exist_ok=True)
    for old in kept.iterdir():
        old.unlink()
    for data in contents:
        (kept / reach.name_of(data)).write_bytes(data)
    print(f"{name}: {len(contents)} inputs kept, {sum(map(len, contents))} bytes", flush=True)
    return True


def show(name: str) -> bool:
    """Print the coverage of the kept inputs, or of the found ones if none are kept. Return whether
    no input failed."""
    target, log = targets.load(name), begin(name) / "reach.log"
    corpus = CORPUS / name if (CORPUS / name).is_dir() else WORK / name / "found"
    if not run(name, "-runs=0", "-print_coverage=1", str(corpus), log=log):
        return False
    text = log.read_text(errors="replace")
    compiled = [file for file in target.COVERS if file.endswith(".pyx")]
    others = [file for file in target.COVERS if file.endswith(".py")]
    contents = [path.read_bytes() for path in sorted(corpus.iterdir())]
    for file in compiled:
        print("{}: {}: {} of {} edges".format(name, file, *reach.edges(text, file)), flush=True)
    for file, (reached, there) in reach.lines(target, contents, others).items():
        print(f"{name}: {file}: {reached} of {there} lines", flush=True)
    return True


def main() -> int:
    if "LD_PRELOAD" not in os.environ:
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment())
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=1, help="duration of each campaign")
    parser.add_argument(
        "--only", default="", help="comma-separated targets: " + ", ".join(targets.names())
    )
    parser.add_argument("--keep", action="store_true", help="replace tests/fuzz/corpus")
    wanted = parser.parse_args()
    good = True
    names = wanted.only.split(",") if wanted.only else targets.names()
    for name in names:
        if wanted.minutes:
            good &= fuzz(name, int(wanted.minutes * 60))
        if wanted.keep:
            good &= keep(name)
        good &= show(name)
    for name in names:
        for path in inputs.failed(WORK / name):
            print(f"{name}: failed input: {path.relative_to(ROOT)}", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
