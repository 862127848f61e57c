"""``tiered doctor``: check the environment of a log and the permissions for it."""

from __future__ import annotations

import io
import json
import os
import re
import resource
import tarfile
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import click

from tiered.arguments import at_home
from tiered.check.check import keeps_versions
from tiered.config import LogConfig
from tiered.errors import ConfigError, RemotePermissionError, TieredError
from tiered.format.kernels import KERNELS_IN_USE, PURE
from tiered.format.keys import TOPICS_PREFIX
from tiered.local.disk.files import PosixFiles
from tiered.program.application import STORE_DEADLINE_SECONDS, Application, Command, pass_application
from tiered.program.open_log import open_tiers
from tiered.program.open_reader import directory_error
from tiered.program.open_store import location, open_remote
from tiered.program.output import human_bytes, write_failure
from tiered.program.partition_status import gather
from tiered.program.platforms import (
    FILE_SYSTEMS,
    PYTHONS,
    SYSTEMS,
    Standing,
    part_versions,
    product_version,
    standing,
    this_file_system,
    this_python,
    this_system,
)
from tiered.program.uploader_status import ask_uploader
from tiered.store.base import Get, Head, List, ListPage, Object, Store
from tiered.store.capabilities import check_capabilities, probe
from tiered.store.driver import drive
from tiered.store.location import StoreLocation
from tiered.store.options import StoreOptions
from tiered.store.s3 import lifecycle_rules
from tiered.store.s3_requests import S3Target
from tiered.times import format_time

SKEW_WARN_MS = 30_000
"""Difference in milliseconds between this machine's clock and the store's that is a warning."""

SKEW_FAIL_MS = 900_000
"""Difference in milliseconds at which S3 refuses signed requests (RequestTimeTooSkewed)."""

EXIT_WARNINGS = 3

STRANGER = "000000000000"
"""Account id to which no bucket belongs."""

LINE_CHARS = 90
"""Longest line of a finding in characters."""

MIN_OPEN_FILES, GOOD_OPEN_FILES = 1024, 65_536
"""Limit of open files below which a warning is given, and the one that is advised."""

OK, WARN, FAIL, SKIP = "ok", "warn", "fail", "skip"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Result of one check of the environment. ``state``: "ok", "warn", "fail" or "skip". ``found``: text of the result.

    ``hint``: next step, empty if there is none. ``exit_code`` counts only if the check failed.
    """

    name: str
    state: str
    found: str
    hint: str = ""
    exit_code: int = 0


@click.command("doctor", cls=Command, exits={3: "warnings"})
@click.option("--write-probe", is_flag=True, help="also write and delete small objects under probe/ in the bucket")
@click.option(
    "--bundle", metavar="FILE", help="write an archive (.tar.gz) for an issue report to FILE: no records, no secrets"
)
@pass_application
def command(app: Application, write_probe: bool, bundle: str | None) -> int:
    """Check program, settings, disk and store, and advise.

    Without --write-probe nothing is written anywhere, so that read-only credentials are enough.

    \b
    Examples:
      tiered doctor --log-dir data --remote s3://acme-logs/prod
      tiered doctor --remote s3://acme-logs/prod --write-probe --json
      tiered doctor --log-dir data --remote s3://acme-logs/prod --bundle report.tar.gz
    """
    if write_probe and app.remote is None:
        raise ConfigError(
            "--write-probe needs a bucket, and none is named", hint="pass --remote URL, or leave --write-probe out"
        )
    diagnoses = list(_examine(app, write_probe=write_probe))
    failed = next((entry.exit_code for entry in diagnoses if entry.state == FAIL), 0)
    warned = any(entry.state == WARN for entry in diagnoses)
    code = failed or (EXIT_WARNINGS if warned else 0)
    fields = {
        "checks": [asdict(entry) for entry in diagnoses],
        "versions": {"tiered": product_version(), **part_versions()},
        "healthy": not code,
    }
    if bundle is not None:
        write_bundle(at_home("--bundle", Path(bundle)), app, fields)
    width = max(len(entry.name) for entry in diagnoses)
    lines = []
    for entry in diagnoses:
        first, *more = textwrap.wrap(entry.found, LINE_CHARS, break_long_words=False, break_on_hyphens=False) or [""]
        lines.append(f"{entry.state:<4}  {entry.name:<{width}}  {first}")
        lines += [f"      {'':<{width}}  {text}" for text in more]
        if entry.hint:
            lines.append(f"      {'':<{width}}  -> {entry.hint}")
    return app.out.result("doctor", fields, lines, code)


def _examine(app: Application, *, write_probe: bool) -> Iterator[Diagnosis]:
    versions = ", ".join(f"{name} {version}" for name, version in part_versions().items())
    yield Diagnosis("versions", OK, f"tiered {product_version()}, {versions}")
    given = [f"{name} from {value.origin}" for name, value in app.values.items() if value.origin != "default"]
    yield Diagnosis("settings", OK, "; ".join(given) or "nothing but defaults")
    if app.log_dir is not None:
        yield from _directory(app, app.log_dir)
    else:
        yield Diagnosis("log directory", SKIP, "none was named (--log-dir)")
    if app.remote is not None:
        yield from _remote(app, write_probe=write_probe)
    else:
        yield Diagnosis("remote", SKIP, "none was named (--remote)")
    for name, found, names in (("system", this_system(), SYSTEMS), ("python", this_python(), PYTHONS)):
        yield _standing(name, found, standing(found, names))
    yield _open_files()
    yield Diagnosis(
        "kernels",
        OK,
        KERNELS_IN_USE,
        ""
        if KERNELS_IN_USE != PURE
        else "all works, slower: install a C compiler and Python's headers, then tieredlog again",
    )


def _standing(name: str, found: str, known: Standing) -> Diagnosis:
    promised = known is not Standing.WITHOUT
    hint = "" if promised else "README.md lists the platforms on which the tests were run"
    return Diagnosis(name, OK if promised else WARN, f"{found}: {known.value}", hint)


def _attempt(name: str, check: Callable[[], Diagnosis]) -> Diagnosis:
    try:
        return check()
    except TieredError as cause:
        return Diagnosis(name, FAIL, cause.message, cause.hint, cause.exit_code)


def _directory(app: Application, directory: Path) -> Iterator[Diagnosis]:
    refused = directory_error(app)
    if refused is not None:
        yield Diagnosis("log directory", FAIL, refused.message, refused.hint, refused.exit_code)
        return
    if not os.access(directory, os.R_OK | os.X_OK):
        yield Diagnosis("log directory", FAIL, f"{directory} cannot be read", "check its owner and mode", 12)
        return
    writable = os.access(directory, os.W_OK)
    yield Diagnosis(
        "log directory",
        OK if writable else WARN,
        f"{directory}, {'writable' if writable else 'read-only for this user'}",
        "" if writable else "fine for reading; a writer needs the permission to write",
    )
    kind = this_file_system(directory)
    if kind:
        yield _standing("file system", kind, standing(kind, FILE_SYSTEMS))
    yield _attempt("disk", lambda: _disk(directory))


def _disk(directory: Path) -> Diagnosis:
    space = PosixFiles().space(directory)
    if space is None:
        return Diagnosis("disk", SKIP, "the file system reports no size, so no reserve is kept free")
    reserve = LogConfig().reserve_bytes(space.total)
    found = f"{human_bytes(space.free)} of {human_bytes(space.total)} free, reserve {human_bytes(reserve)}"
    if space.free < reserve:
        return Diagnosis("disk", FAIL, found, "appends are refused until space is free", 75)
    if space.free < space.total // 5:
        return Diagnosis("disk", WARN, found, "more than 80 % is used; local.retention.bytes lets uploaded segments go")
    return Diagnosis("disk", OK, found)


def _remote(app: Application, *, write_probe: bool) -> Iterator[Diagnosis]:
    try:
        store = open_remote(app)
    except TieredError as cause:
        yield Diagnosis("remote", FAIL, cause.message, cause.hint, cause.exit_code)
        return
    try:
        place = location(app)
        endpoint = place.target.endpoint_url if place.target is not None else None
        yield Diagnosis("remote", OK, store.url + (f" at {endpoint}" if endpoint else ""))
        dates: list[int] = []
        keys: list[str] = []
        listing = _attempt("list", lambda: _list(store, dates, keys))
        yield listing
        if listing.state == FAIL:
            return
        yield _attempt("read", lambda: _read(store, dates, keys))
        yield _clock(app.clock.now_ms(), dates)
        yield from _guards(place, store, keys)
        if not write_probe or app.dry_run:
            would = "write and delete small objects below probe/"
            yield Diagnosis("write", SKIP, f"dry run: would {would}" if write_probe else f"--write-probe would {would}")
            return
        yield _attempt("write", lambda: _write(app, store))
    finally:
        store.close()


def _guards(place: StoreLocation, store: Store, keys: list[str]) -> Iterator[Diagnosis]:
    """Yield diagnoses of the settings that protect a bucket on S3. ``keys``: keys of existing objects."""
    target = place.target
    if target is None:
        return
    yield from _lifecycle(target)
    if target.expected_bucket_owner is not None:
        yield _attempt("owner", lambda: _owner(place, target))
    if keys:
        yield _attempt("encryption", lambda: _encryption(target, store, keys[0]))
        yield _attempt("older versions", lambda: _versions(store))


def _lifecycle(target: S3Target) -> Iterator[Diagnosis]:
    """Yield a diagnosis for each problem of the bucket's lifecycle rules, or one that says there is none."""
    rules = lifecycle_rules(target)
    if rules is None:
        yield Diagnosis("lifecycle", SKIP, "the rules cannot be read: that needs s3:GetLifecycleConfiguration")
        return
    prefix = f"{target.prefix}/" if target.prefix else ""
    found = check_lifecycle_rules(rules, target.bucket, prefix)
    for each in found:
        yield Diagnosis("lifecycle", FAIL if each.deletes else WARN, each.text, each.hint, 1)
    if not found:
        yield Diagnosis("lifecycle", OK, "no rule deletes what the log needs")


def _open_files() -> Diagnosis:
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if 0 <= soft < MIN_OPEN_FILES:
        hint = f"`ulimit -n {GOOD_OPEN_FILES}` in the shell, LimitNOFILE={GOOD_OPEN_FILES} in a unit"
        return Diagnosis("open files", WARN, f"this process may open {soft} files: few for many partitions", hint)
    return Diagnosis("open files", OK, f"at most {soft if soft >= 0 else 'any number'}")


def _owner(place: StoreLocation, target: S3Target) -> Diagnosis:
    """Check that the store refuses a wrong owner. Earlier requests named the right one."""
    stranger = replace(place, target=replace(target, expected_bucket_owner=STRANGER))
    other = stranger.open(StoreOptions(deadline_seconds=STORE_DEADLINE_SECONDS))
    try:
        other.execute(List(TOPICS_PREFIX, limit=1))
    except RemotePermissionError:
        return Diagnosis("owner", OK, f"the bucket belongs to the account {target.expected_bucket_owner}")
    finally:
        other.close()
    return Diagnosis("owner", WARN, "the store ignores expected_bucket_owner", "AWS checks it; this server does not")


def _encryption(target: S3Target, store: Store, key: str) -> Diagnosis:
    head = store.execute(Head(key))
    found = (head.encryption if isinstance(head, Object) else "") or "the store reports none"
    method, key_id = target.sse or "", target.sse_kms_key_id or ""
    ending = "" if "alias/" in key_id else key_id  # the answer is the key's ARN, which ends in its id
    if not found.startswith(method) or not found.endswith(ending):
        wanted = f"{method} {key_id}".rstrip()
        hint = "older objects stay as they are; written since, it is the store that does not do as it was asked"
        return Diagnosis("encryption", WARN, f"of {key}: {found}; asked for: {wanted}", hint)
    return Diagnosis("encryption", OK, f"of {key}: {found}")


def _versions(store: Store) -> Diagnosis:
    kept = drive(store, keeps_versions())
    if kept is None:
        return Diagnosis("older versions", SKIP, "they cannot be listed: that needs s3:ListBucketVersions")
    if not kept:
        hint = "`aws s3api put-bucket-versioning --versioning-configuration Status=Enabled --bucket NAME`: then "
        hint += "`tiered repair` brings back what was damaged or deleted"
        return Diagnosis("older versions", WARN, "the bucket keeps no versions of objects", hint)
    return Diagnosis("older versions", OK, "the bucket keeps versions of objects")


def _list(store: Store, dates: list[int], keys: list[str]) -> Diagnosis:
    page = store.execute(List(TOPICS_PREFIX, limit=1000))
    if not isinstance(page, ListPage):
        return Diagnosis("list", FAIL, f"a listing gave {page!r}", "", 1)
    dates.append(page.date_ms)
    keys += [entry.key for entry in page.entries]
    more = " or more" if page.more else ""
    hint = "" if keys else "fine for a new log; else correct the bucket or the prefix"
    return Diagnosis(
        "list", OK if keys else WARN, f"{len(keys)}{more} {'topic' if len(keys) == 1 and not more else 'topics'}", hint
    )


def _read(store: Store, dates: list[int], keys: list[str]) -> Diagnosis:
    key = keys[0] if keys else "topics/doctor"
    found = store.execute(Get(key, 0, 16))
    if isinstance(found, Object):
        dates.append(found.date_ms)
        answer = store.execute(Head(key))
        checksum = isinstance(answer, Object) and answer.crc32c is not None
        checksum_text = (
            "returns CRC32C checksums" if checksum else "returns no checksums: check --read-data is the proof"
        )
        return Diagnosis("read", OK, f"{len(found.data)} bytes of {key}; the store {checksum_text}")
    return Diagnosis("read", OK, "an absent key is answered as absent")


def _clock(now_ms: int, dates: list[int]) -> Diagnosis:
    known = [date for date in dates if date > 0]
    if not known:
        return Diagnosis("clock", SKIP, "the store returns no time")
    skew_ms = now_ms - known[-1]
    found = f"this machine {format_time(now_ms)}, the store {format_time(known[-1])}"
    if abs(skew_ms) >= SKEW_FAIL_MS:
        return Diagnosis("clock", FAIL, found, "set the clock (NTP): S3 refuses requests that are signed so wrongly", 1)
    if abs(skew_ms) >= SKEW_WARN_MS:
        return Diagnosis("clock", WARN, found, "set the clock (NTP): retention and leases count from it")
    return Diagnosis("clock", OK, found)


def _write(app: Application, store: Store) -> Diagnosis:
    capabilities = drive(store, probe(), clock=app.clock, ids=app.ids)
    check_capabilities(capabilities, store.url)
    words = [
        "conditional writes",
        "ranges" if capabilities.ranges else "no ranges",
        "returns checksums" if capabilities.returns_crc32c else "returns no checksums",
        "verifies checksums" if capabilities.verifies_crc32c else "does not verify checksums: uploads are read back",
        "multi-delete" if capabilities.multi_delete else "no multi-delete: objects are deleted one by one",
    ]
    return Diagnosis("write", OK, ", ".join(words))


MAX_LISTED = 20_000
"""Most files of the log directory that are listed."""
_SECRET = re.compile(r"//[^/@\s\"]+@")
"""User and password in a URL."""


def write_bundle(path: Path, app: Application, checks: Mapping[str, object]) -> None:
    """Write the archive of an issue report to ``path``. ``checks``: results of ``doctor``.

    Of the environment it has only the names of ``AWS_*`` and ``TIERED_*`` variables, not their values. Raises
    ConfigError if ``path`` exists or cannot be written, DiskFullError on a full disk.
    """
    documents: dict[str, object] = {
        "doctor.json": checks,
        "settings.json": {name: [str(value.value), value.origin] for name, value in app.values.items()},
        "environment.json": sorted(name for name in os.environ if name.startswith(("AWS_", "TIERED_"))),
    }
    if app.log_dir is not None and app.log_dir.is_dir():
        documents["files.json"] = _sizes(app.log_dir)
        documents["status.json"] = ask_uploader(app.log_dir, app.clock).document
        try:
            with open_tiers(app, with_remote=False) as tiers:
                documents["partitions.json"] = [status.as_json() for status in gather(tiers)]
        except TieredError as error:
            documents["partitions.json"] = str(error)
    try:
        with tarfile.open(path, "x:gz") as archive:
            for name, document in documents.items():
                text = _SECRET.sub("//***@", json.dumps(document, indent=1, default=str)).encode()
                entry = tarfile.TarInfo(name)
                entry.size, entry.mtime = len(text), app.clock.now_ms() // 1000
                archive.addfile(entry, io.BytesIO(text))
    except OSError as error:
        raise write_failure(path, "--bundle", error) from error
    app.out.say(f"{path}: look through it, then attach it to the report")


def _sizes(directory: Path) -> dict[str, int]:
    """Return the sizes in bytes of at most :data:`MAX_LISTED` files below the directory, by relative path."""
    found: dict[str, int] = {}
    for folder, _, names in os.walk(directory):
        for name in sorted(names):
            if len(found) == MAX_LISTED:
                return found
            place = Path(folder, name)
            if place.is_file():
                found[str(place.relative_to(directory))] = place.stat().st_size
    return found


SCRUB_DAYS = 20
"""Days in which `check --read-data-subset 5%` reads all segments. Damage must be found while versions live."""
OUT_OF_REACH = frozenset({"GLACIER", "DEEP_ARCHIVE"})
"""Storage classes that no reader gets without a restore."""

Rule = Mapping[str, Any]


class LifecycleFinding(NamedTuple):
    """Problem of the lifecycle rules. ``deletes``: True if a rule would delete parts of the log."""

    text: str
    hint: str
    deletes: bool = False


def check_lifecycle_rules(rules: Sequence[Rule], bucket: str, prefix: str) -> list[LifecycleFinding]:
    """Return the problems of the rules for the log below ``prefix``, which is ``""`` or ends with ``/``.

    ``bucket``: its name, for the hints.
    """
    look = f"`aws s3api get-bucket-lifecycle-configuration --bucket {bucket}` prints the rules"
    rules = [rule for rule in rules if rule.get("Status") == "Enabled" and _touches(_prefix_of(rule), prefix)]
    found = []
    for rule in rules:
        name, days = rule.get("ID", "without a name"), _days(rule.get("Expiration", {}))
        if days:
            text = f"rule {name} deletes objects of the log {days}: only `tiered maintain` knows which may go"
            found.append(LifecycleFinding(text, f"delete that rule; {look}", deletes=True))
        classes = {each.get("StorageClass") for each in rule.get("Transitions", ())} & OUT_OF_REACH
        if classes:
            text = f"rule {name} moves objects to {min(classes)}, from which no reader gets them"
            found.append(LifecycleFinding(text, f"choose STANDARD_IA or GLACIER_IR; {look}"))
        kept = rule.get("NoncurrentVersionExpiration", {})
        short = kept.get("NoncurrentDays", SCRUB_DAYS)
        # A rule that spares the newest old version spares segments: they have no other one.
        if short < SCRUB_DAYS and not kept.get("NewerNoncurrentVersions"):
            text = f"rule {name} deletes old versions after {short} days, and a check of all bytes takes {SCRUB_DAYS}"
            found.append(LifecycleFinding(text, f"keep them for 30 days, as terraform/modules/bucket does; {look}"))
    aborts = [rule for rule in rules if "AbortIncompleteMultipartUpload" in rule]
    if not any(prefix.startswith(_prefix_of(rule)) for rule in aborts):
        hint = f"add AbortIncompleteMultipartUpload, as terraform/modules/bucket does; {look}"
        found.append(LifecycleFinding("no rule aborts unfinished uploads, and their parts are paid for", hint))
    return found


def _prefix_of(rule: Rule) -> str:
    chosen = rule.get("Filter", {})
    return str(rule.get("Prefix") or chosen.get("Prefix") or chosen.get("And", {}).get("Prefix") or "")


def _touches(chosen: str, prefix: str) -> bool:
    """Return True if the rule's prefix ``chosen`` covers the log or a part of it. ``probe/`` alone does not count."""
    return prefix.startswith(chosen) or (chosen.startswith(prefix) and not chosen.startswith(f"{prefix}probe/"))


def _days(expiration: Mapping[str, Any]) -> str:
    if "Days" in expiration:
        return f"after {expiration['Days']} days"
    return f"on {expiration['Date']:%Y-%m-%d}" if "Date" in expiration else ""
