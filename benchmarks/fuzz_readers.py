"""Fuzzes the readers of files that strangers can write: structure-aware mutations of real files.

    python benchmarks/fuzz_readers.py --cases 1000000             every format in turn
    python benchmarks/fuzz_readers.py --format trace --atheris    coverage-guided, with atheris (a development tool)

A reader returns, or raises TraceError or OutputError in one printable line. Anything else is a failure: another
exception, a case of more than `SECONDS_MAX`, cases that add more than `MEMORY_MAX` to the process, a file opened for
writing outside of the folder that the reader was given. The first failing input is kept, and its path is printed.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

SECONDS_MAX = 5.0
MEMORY_MAX = 512 << 20
CORPUS = Path(__file__).parents[1] / "corpus"
NUMBERS = (
    0,
    1,
    -1,
    2,
    3,
    7,
    64,
    255,
    4096,
    1 << 20,
    1 << 31,
    1 << 63,
    -(1 << 63),
    1 << 64,
    10**25,
    10**400,
    0.5,
    1e308,
)
TEXTS = (
    "", "r0", "~", "x" * 65, "x" * 5000, "{__import__('os').system('id')}", '"""\nimport os\n"""', "\x1b[31m", "\x00",
    "</svg><script>", "../../etc/passwd", "/etc/passwd", "findings/../../x.json", "\ud800", "\u202e", "*", "[", "a b",
    "M2-step-mamba-key", "state@3 of r0", "S1", "M9", "new", "none", "align", "1e400", "-1", "nan",
)  # fmt: skip
SIGNATURE = "M4-step-mamba-dead-write"


class Format(NamedTuple):
    """A kind of file: where it lies in a folder, real contents of it, and its reader."""

    file: str
    seeds: Callable[[], Sequence[bytes]]
    read: Callable[[Path], object]


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Return a mutated file: its JSON values, its lines, or its bytes."""
    if rng.random() < 0.75:
        lines = data.split(b"\n") if data.count(b"\n") > 1 else [data]
        try:
            document, whole = json.loads(data), True
        except (ValueError, RecursionError):
            document, whole = None, False
        if whole:
            for _ in range(rng.choice((1, 1, 2, 5))):
                document = mutate_value(document, rng)
            return dumped(document, rng)
        index = rng.randrange(len(lines))
        lines[index] = mutate_line(lines[index], rng)
        return b"\n".join(lines)
    return mutate_bytes(data, rng)


def dumped(document: object, rng: random.Random) -> bytes:
    """Return the document as JSON, sometimes in another encoding or with a key twice."""
    text = json.dumps(document, ensure_ascii=rng.random() < 0.7)
    if rng.random() < 0.05:
        text = re.sub(r'("[^"]*"): ([^,{}\[\]]*)', r"\1: \2, \1: \2", text, count=1)
    encoding = rng.choice(("utf-8", "utf-8", "utf-8", "latin-1", "utf-16"))
    return text.encode(encoding, errors="surrogatepass" if encoding == "utf-8" else "replace")


def mutate_value(value: Any, rng: random.Random) -> Any:
    """Return a value with one change somewhere in it."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        choice = rng.random()
        changed = dict(value)
        if choice < 0.1:
            del changed[key]
        elif choice < 0.2:
            changed[rng.choice(TEXTS)] = changed[key]
        elif choice < 0.25:
            changed[key] = changed[rng.choice(list(value))]
        else:
            changed[key] = mutate_value(value[key], rng)
        return changed
    if isinstance(value, list) and value and rng.random() < 0.9:
        index = rng.randrange(len(value))
        choice = rng.random()
        if choice < 0.1:
            return value[:index] + value[index + 1 :]
        if choice < 0.2:
            return value[:index] + [value[index]] * rng.choice((2, 3, 40)) + value[index:]
        if choice < 0.3:
            return rng.sample(value, len(value))
        return [*value[:index], mutate_value(value[index], rng), *value[index + 1 :]]
    return interesting(value, rng)


def interesting(value: object, rng: random.Random) -> object:
    """Return another value, of the same type more often than not."""
    choice = rng.random()
    if isinstance(value, bool):
        return not value if choice < 0.7 else rng.choice(TEXTS)
    if isinstance(value, int) and choice < 0.8:
        return rng.choice((*NUMBERS, value + 1, value - 1, -value, value * 2))
    if isinstance(value, str) and choice < 0.8:
        return rng.choice((*TEXTS, value * 2, value[:-1], value + rng.choice(TEXTS)))
    nested: object = []
    for _ in range(rng.choice((1, 3, 500))):
        nested = [nested]
    return rng.choice((*NUMBERS, *TEXTS, None, True, [], {}, nested, {"a": {"b": 1}}))


def mutate_line(line: bytes, rng: random.Random) -> bytes:
    """Return one line of NDJSON or TOML with another value."""
    try:
        return dumped(mutate_value(json.loads(line), rng), rng)
    except (ValueError, RecursionError):
        pass
    key, equals, _ = line.partition(b"=")
    if equals and rng.random() < 0.7:
        value = interesting("x", rng)
        text = json.dumps(value) if not isinstance(value, str) or rng.random() < 0.7 else f"'{value}'"
        return key + b"= " + text.encode(errors="surrogatepass")
    return mutate_bytes(line, rng)


def mutate_bytes(data: bytes, rng: random.Random) -> bytes:
    """Return the data with bytes changed, cut, repeated or inserted."""
    place = rng.randrange(len(data) + 1)
    choice = rng.random()
    if choice < 0.3:
        return data[:place] + bytes([rng.randrange(256)]) + data[place + 1 :]
    if choice < 0.5:
        return data[:place]
    if choice < 0.7:
        end = min(place + rng.choice((1, 8, 200)), len(data))
        return data[:place] + data[place:end] * rng.choice((2, 50)) + data[end:]
    if choice < 0.9:
        return data[:place] + rng.choice(TEXTS).encode(errors="surrogatepass") + data[place:]
    return data[:place] + rng.choice((b"[", b"{", b'{"a":', b"\xff", b"9")) * rng.choice((1, 30_000)) + data[place:]


def trace_seeds() -> list[bytes]:
    """Return real traces, short ones of every target."""
    from hybridfuzz.harness.draw.trace_files import json_below

    return [path.read_bytes() for path in json_below(CORPUS)[::6]]


def known_seeds() -> list[bytes]:
    """Return known.toml files."""
    entry = b'[[known]]\nsignature = "M2-step-mamba-key"\ntarget = "vllm*"\nreason = "vLLM #57580"\n'
    return [b"", entry, entry * 3, entry.replace(b'"M2', b"'M2").replace(b'key"', b"key-[a-z]*'")]


def options_seeds() -> list[bytes]:
    """Return options files."""
    return [
        b'target = "hybrid"\nfixes = ["builtin"]\n[fuzz]\njobs = 4\nconfig = { mamba_cache_mode = "align" }\n',
        b'profile = "desk"\nbudget = "60s"\n[profiles.desk]\nseed = 1\n[profiles.desk.gate]\nstrict = true\n',
    ]


def scope_seeds() -> list[bytes]:
    """Return the packaged scopes."""
    return [path.read_bytes() for path in sorted((CORPUS.parent / "harness/explore/scopes").glob("*.toml"))]


def exploration_seeds(name: str) -> Callable[[], list[bytes]]:
    """Return the seeds of one file that a short exploration writes: a journal, if it is stopped."""

    def seeds() -> list[bytes]:
        from hybridfuzz.harness.cli import main

        with tempfile.TemporaryDirectory(prefix="fuzz-readers-") as folder, contextlib.redirect_stdout(io.StringIO()):
            main(["explore", "--scope", "minute", "--events", "2", "--states", "9", "--jobs", "1", "-o", folder])
            return [Path(folder, name).read_bytes()]

    return seeds


def lines_seeds() -> list[bytes]:
    """Return the lines that a campaign reached."""
    return [b'{"target":"hybrid","version":"","seed":1,"traces":9,"lines":{"hybridfuzz.reference.model":[1,2,30]}}']


def campaign_seeds(name: str) -> Callable[[], list[bytes]]:
    """Return the seeds of one file of a campaign's folder: a real one, made once."""

    def seeds() -> list[bytes]:
        return [(campaign_folder() / name).read_bytes()]

    return seeds


_folders: list[Path] = []


def campaign_folder() -> Path:
    """Run a short campaign on a mutant, once; return its folder."""
    if not _folders:
        import subprocess

        folder = Path(tempfile.mkdtemp(prefix="fuzz-readers-"))
        words = ["fuzz", "--target", "hybrid:null-as-state-slot", "--seed", "1", "--traces", "8", "--no-canary"]
        command = [sys.executable, "-m", "hybridfuzz.harness.cli", *words, "--reduce", "2s", "-o", str(folder)]
        subprocess.run(command, check=False, capture_output=True)
        for path in (folder / "findings").glob("*"):  # one finding, with a name that is known here
            if path.name.partition(".")[0] != SIGNATURE:
                path.unlink()
        state = json.loads((folder / "campaign.json").read_bytes())
        state["findings"] = [one for one in state["findings"] if one["signature"] == SIGNATURE]
        (folder / "campaign.json").write_text(json.dumps(state))
        _folders.append(folder)
    return _folders[0]


def read_trace(path: Path) -> object:
    """Read a trace and use it as `replay --port` does before any engine runs."""
    from hybridfuzz.harness.draw.adapt import refusal
    from hybridfuzz.harness.draw.trace_files import encode_trace, load_trace
    from hybridfuzz.targets.base.registry import load_factory

    trace = load_trace(path)
    encode_trace(trace)
    return refusal(trace, load_factory("hybrid"))


def read_corpus(path: Path) -> object:
    """Read the corpus of a campaign: broken files are put aside."""
    from hybridfuzz.harness.campaign.rare_traces import CampaignCorpus

    corpus = CampaignCorpus(path.parents[1])
    return [corpus.load(one) for one in corpus.files()]


def read_known(path: Path) -> object:
    """Read known bugs and look one up."""
    from hybridfuzz.harness.group.known.known_toml import load_known, reason_for

    return reason_for(load_known(path), SIGNATURE, "hybrid")


def read_page(path: Path) -> object:
    """Read everything in a campaign's folder and render its page."""
    from hybridfuzz.harness.group.findings.finding_store import read_state
    from hybridfuzz.reports.data import load_folder
    from hybridfuzz.reports.page import render

    folder = path.parent if path.parent.name != "findings" else path.parents[1]
    read_state(folder)
    return render(load_folder(folder)).encode()


def read_evidence(path: Path) -> object:
    """Read what a campaign knows about the cause of a finding."""
    from hybridfuzz.harness.group.findings.finding_store import load_evidence

    return load_evidence(path.with_suffix(".json"))


def read_triage(path: Path) -> object:
    """Read the history of bugs."""
    from hybridfuzz.harness.group.bug_history import load_bug_history

    return load_bug_history(path.parent)


def read_species(path: Path) -> object:
    """Read which species a campaign has seen, and estimate what is left."""
    from hybridfuzz.harness.risk.estimates import estimate
    from hybridfuzz.harness.risk.species_counts import SpeciesCounts, load_species

    counts = SpeciesCounts()
    if saved := load_species(path.parent):
        counts.merge(saved)
    return estimate(counts.seen(saved.draws if saved else ()))


def read_rates(path: Path) -> object:
    """Read the samples of a campaign and draw them."""
    from hybridfuzz.harness.face.outputs.totals_over_time import load_samples
    from hybridfuzz.reports.charts import silence_charts
    from hybridfuzz.reports.sections import rates_section

    samples = load_samples(path.parent)
    section = rates_section(samples)
    return section and [section.html(), *silence_charts(samples)]


def read_scope(path: Path) -> object:
    """Read what an exploration enumerates."""
    from hybridfuzz.harness.explore.scope import read_scope

    return read_scope(str(path))


def read_certificate(path: Path) -> object:
    """Read a certificate and render its page."""
    from hybridfuzz.harness.explore.certificate import load_certificate, page

    return page(load_certificate(path)).encode()


def read_lines(path: Path) -> object:
    """Read the lines that a campaign reached."""
    from hybridfuzz.harness.record.reached_lines import load_lines

    return load_lines(path.parents[1])


def read_options(path: Path) -> object:
    """Read an options file for a command and for the gate."""
    from hybridfuzz.harness.gate.settings import SettingsError, combine
    from hybridfuzz.harness.options_file import profile_entries
    from hybridfuzz.targets.base.trace import TraceError

    try:
        combine({"target": "hybrid", "out": "out"}, path.parent)
    except SettingsError as error:
        raise TraceError(str(error)) from None
    return profile_entries(path.parent, "fuzz", {"target", "fixes", "jobs", "seed", "config"}, "")


FORMATS = {
    "trace": Format("trace.json", trace_seeds, read_trace),
    "corpus": Format("corpus/0123456789abcdef.json", trace_seeds, read_corpus),
    "known": Format("known.toml", known_seeds, read_known),
    "state": Format("campaign.json", campaign_seeds("campaign.json"), read_page),
    "triage": Format("triage.json", campaign_seeds("triage.json"), read_triage),
    "history": Format(f"findings/{SIGNATURE}.history", campaign_seeds(f"findings/{SIGNATURE}.history"), read_page),
    "evidence": Format(
        f"findings/{SIGNATURE}.evidence", campaign_seeds(f"findings/{SIGNATURE}.evidence"), read_evidence
    ),
    "species": Format("species.json", campaign_seeds("species.json"), read_species),
    "rates": Format("rates.ndjson", campaign_seeds("rates.ndjson"), read_rates),
    "lines": Format("coverage/lines.json", lines_seeds, read_lines),
    "options": Format("hybridfuzz.toml", options_seeds, read_options),
    "scope": Format("scope.toml", scope_seeds, read_scope),
    "certificate": Format("certificate.json", exploration_seeds("certificate.json"), read_certificate),
}
SLOW = {"state": 10, "history": 10}
"""Formats whose cases are rendered: one of them for so many of the others."""


def memory(field: str) -> int:
    """Return bytes of memory of this process: what it holds (VmRSS), or the most since a `Watch` was made (VmHWM).

    Not `ru_maxrss`: a new process inherits that from the one that started it.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(field + ":"))


class Watch:
    """Reports files that are opened for writing outside of one folder. An audit hook cannot be removed: make one.

    Also knows how much memory the process held before the first case.
    """

    def __init__(self) -> None:
        self.folder = ""
        self.outside: list[str] = []
        sys.addaudithook(self._hook)
        self.memory_before = memory("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.folder:
            return
        if event == "open":
            path, mode, flags = arguments
            writes = bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)) or (isinstance(mode, str) and "w" in mode)
            paths = [path] if writes and not isinstance(path, int) else []
        elif event in ("os.rename", "os.link", "os.symlink", "shutil.move"):
            paths = list(arguments[:2])
        elif event in ("os.remove", "os.rmdir", "os.mkdir", "os.chmod", "os.truncate", "shutil.rmtree"):
            paths = [arguments[0]]
        elif event in ("os.system", "subprocess.Popen", "os.exec", "os.posix_spawn"):
            paths = [f"/{event}"]
        else:
            return
        self.outside += [f"{event} {one}" for one in map(os.fsdecode, paths) if not self._inside(one)]

    def _inside(self, path: str) -> bool:
        return os.path.realpath(path).startswith((self.folder, "/dev/null"))


class Failure(Exception):
    """A reader did what it must not do."""


def check(form: Format, folder: Path, data: bytes, watch: Watch) -> bool:
    """Read one case; return True if the file was accepted. Raises Failure."""
    from hybridfuzz.harness.group.findings.finding_store import OutputError
    from hybridfuzz.targets.base.trace import TraceError

    path = folder / form.file
    path.write_bytes(data)
    began, watch.folder, watch.outside = time.monotonic(), str(folder.resolve()), []
    accepted = False
    try:
        form.read(path)
        accepted = True
    except (TraceError, OutputError) as error:
        message = str(error)
        if "\n" in message or len(message) > 2_000 or not message.isprintable():
            raise Failure(f"the error is not one short printable line: {message[:300]!r}") from error
    except BaseException as error:
        raise Failure(f"{type(error).__name__}: {str(error)[:300]}") from error
    finally:
        watch.folder = ""
        path.unlink(missing_ok=True)
    seconds, used = time.monotonic() - began, memory("VmHWM") - watch.memory_before
    if watch.outside:
        raise Failure(f"outside of its folder: {watch.outside[:3]}")
    if used > MEMORY_MAX:
        raise Failure(f"the cases took {used >> 20} MiB")
    if seconds > SECONDS_MAX:
        raise Failure(f"it took {seconds:.1f} s")
    return accepted


def prepared(name: str, folder: Path) -> Format:
    """Return a format whose other files lie in the folder: a real campaign's, for those that need one."""
    form = FORMATS[name]
    if form.read is read_page:
        shutil.copytree(campaign_folder(), folder, dirs_exist_ok=True)
    (folder / form.file).parent.mkdir(parents=True, exist_ok=True)
    return form


def cases(name: str, seed: int) -> Iterator[bytes]:
    """Yield mutated files, without an end; accepted ones are not fed back."""
    rng, seeds = random.Random(f"{name} {seed}"), FORMATS[name].seeds()
    while True:
        data = rng.choice(seeds)
        for _ in range(rng.choice((1, 1, 1, 2, 4))):
            data = mutate(data, rng)
        yield data


def run(names: Sequence[str], count: int, seed: int, seconds: float) -> int:
    """Run so many cases over all formats; print a line for each format; return the number of failures."""
    watch, failures, end = Watch(), 0, time.monotonic() + seconds
    shares = {name: 1 / SLOW.get(name, 1) for name in names}
    total = 0
    for name in names:
        wanted = round(count * shares[name] / sum(shares.values()))
        with tempfile.TemporaryDirectory(prefix="fuzz-readers-", dir=_memory_folder()) as made:
            folder = Path(made)
            form, accepted, done, began = prepared(name, folder), 0, 0, time.monotonic()
            seen: set[str] = set()
            for data in cases(name, seed):
                if done >= wanted or time.monotonic() > end:
                    break
                done += 1
                try:
                    accepted += check(form, folder, data, watch)
                except Failure as failure:
                    kind = re.sub(r"\d+|'[^']*'", "", str(failure))[:60]
                    if kind not in seen:
                        seen.add(kind)
                        kept = Path(tempfile.gettempdir()) / f"fuzz-readers-{name}-{len(seen)}"
                        kept.write_bytes(data)
                        print(f"FAILED {name}: {failure} ({kept})", flush=True)
                    failures += 1
        spent, total = time.monotonic() - began, total + done
        print(f"{name:8} {done:9,} cases, {accepted:8,} accepted, {spent:7.1f} s", flush=True)
    print(f"{total:,} cases, {failures} failures, at most {memory('VmHWM') >> 20} MiB of memory")
    return failures


def run_atheris(name: str, count: int) -> None:
    """Run one format with coverage feedback; does not return."""
    import atheris

    with atheris.instrument_imports(include=["hybridfuzz.harness", "hybridfuzz.targets.base", "hybridfuzz.reports"]):
        import hybridfuzz.harness.campaign.rare_traces
        import hybridfuzz.harness.draw.trace_files
        import hybridfuzz.harness.group.bug_history
        import hybridfuzz.harness.group.known.known_toml
        import hybridfuzz.reports.page  # noqa: F401
    folder = Path(tempfile.mkdtemp(prefix="fuzz-readers-", dir=_memory_folder()))
    form, watch = prepared(name, folder), Watch()
    inputs = folder / "inputs"
    inputs.mkdir()
    for index, data in enumerate(form.seeds()):
        (inputs / str(index)).write_bytes(data)

    def one(data: bytes) -> None:
        check(form, folder, data, watch)

    def mutator(data: bytes, size: int, seed: int) -> bytes:
        return mutate(bytes(data), random.Random(seed))[:size]

    words = [f"-runs={count}", "-max_len=20000", f"-timeout={SECONDS_MAX:.0f}", f"-artifact_prefix={folder}/"]
    atheris.Setup([sys.argv[0], *words, str(inputs)], one, custom_mutator=mutator)
    atheris.Fuzz()


def _memory_folder() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def main() -> int:
    """Parse the command line, run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=1e9, help="end after so many seconds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--format", action="append", choices=list(FORMATS), help="only these")
    parser.add_argument("--atheris", action="store_true", help="coverage-guided; one format")
    options = parser.parse_args()
    names = options.format or list(FORMATS)
    if options.atheris:
        run_atheris(names[0], options.cases)
    return 1 if run(names, options.cases, options.seed, options.seconds) else 0


if __name__ == "__main__":
    sys.exit(main())
