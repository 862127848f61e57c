"""boto3 clients of S3, shared by the stores of one process with the same settings and credentials.

The first client of a process costs some 0.5 s of CPU, each further one about 0.1 s, and its open connections serve
the next store. boto3 is imported with the first client.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tiered.errors import ConfigError, install_command
from tiered.store.s3_requests import S3Target, expect_of_large, forbid_redirect, mark_foreign_page

IDLE_CLIENTS = 4
"""Unused clients that are kept for the next store; their connections are closed."""

_CREDENTIAL_FILES = (("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"), ("AWS_CONFIG_FILE", "~/.aws/config"))


@dataclass(slots=True, eq=False)
class S3Client:
    """A boto3 client, the errors that it raises, the hash of its settings, and how many stores use it."""

    boto: Any
    sdk_errors: tuple[type[Exception], ...]
    origin: bytes
    stores: int = 0


class S3Clients:
    """Clients by settings and credentials. Thread-safe; a forked child begins without any."""

    def __init__(self, idle: int = IDLE_CLIENTS) -> None:
        self._idle = idle
        self._loader: Any = None  # of botocore: it caches S3's model, which costs five times the rest
        self.forget()

    def forget(self) -> None:
        """Start over in a forked child: connections are its parent's, and a thread of the parent may hold the lock."""
        self._lock = threading.Lock()
        self._held: dict[bytes, S3Client] = {}

    @property
    def in_use(self) -> int:
        """Number of clients that a store uses."""
        with self._lock:
            return sum(1 for each in self._held.values() if each.stores)

    def lease(self, target: S3Target) -> S3Client:
        """Return the client for ``target``, until :meth:`release`. Raises ConfigError if none can be made."""
        with self._lock:
            key = origin_of(target)
            client = self._held.pop(key, None) or self._made(target, key)
            self._held[key] = client  # most recently used last
            client.stores += 1
            return client

    def release(self, client: S3Client) -> None:
        """Release one use of a client; the last one closes its connections."""
        with self._lock:
            client.stores -= 1
            if client.stores:
                return
            client.boto.close()  # closes connections; the next request would make new ones
            unused = [key for key, each in self._held.items() if not each.stores]
            for key in unused[: max(0, len(unused) - self._idle)]:
                del self._held[key]

    def _made(self, target: S3Target, origin: bytes) -> S3Client:
        try:
            core_session = importlib.import_module("botocore.session")
            loaders = importlib.import_module("botocore.loaders")
            exceptions = importlib.import_module("botocore.exceptions")
            config = importlib.import_module("botocore.config")
            parsers = importlib.import_module("botocore.parsers")
        except ImportError as error:
            raise ConfigError("s3:// needs boto3", hint=install_command("s3")) from error
        if self._loader is None:
            self._loader = loaders.create_loader()
        core = core_session.get_session()
        core.register_component("data_loader", self._loader)
        try:
            # Not through boto3: its client imports ThreadPoolExecutor, which fails once the main thread has ended.
            boto = core.create_client(
                "s3", config=config.Config(**target.config_arguments()), **target.client_arguments()
            )
        except (exceptions.BotoCoreError, ValueError) as error:
            raise ConfigError(
                f"cannot connect to {target.url}: {error}", hint="check region, endpoint and AWS_PROFILE"
            ) from error
        boto.meta.events.register("before-call.s3", forbid_redirect)
        boto.meta.events.register("before-call.s3", expect_of_large)
        boto.meta.events.register("response-received.s3", mark_foreign_page)
        errors = (exceptions.BotoCoreError, exceptions.ClientError, parsers.ResponseParserError, OSError)
        return S3Client(boto, errors, origin)


def origin_of(target: S3Target) -> bytes:
    """Return a hash of all that a client depends on: its settings and the sources of its credentials. It hides secrets.

    Credentials of a role are renewed inside a client, which reads those of a file or of the environment once: a change
    there gives another origin, and needs another client.
    """
    sources: list[object] = [target.client_arguments(), target.config_arguments()]
    sources += sorted((name, value) for name, value in os.environ.items() if name.startswith("AWS_"))
    for variable, default in _CREDENTIAL_FILES:
        # As botocore finds it: without a home directory (any uid, no HOME) the path stays as it is written.
        # pathlib's expanduser would raise.
        path = os.path.expanduser(os.environ.get(variable) or default)  # noqa: PTH111
        try:
            found = Path(path).stat()
        except OSError:
            sources.append((path, None))
        else:
            sources.append((path, found.st_ino, found.st_mtime_ns, found.st_size))
    return hashlib.sha256(repr(sources).encode()).digest()


CLIENTS = S3Clients()
"""The clients of this process."""

os.register_at_fork(after_in_child=CLIENTS.forget)


def lifecycle_rules(target: S3Target) -> list[dict[str, Any]] | None:
    """Return the lifecycle rules of the bucket; None where they cannot be read."""
    client = CLIENTS.lease(target)
    try:
        answer = client.boto.get_bucket_lifecycle_configuration(Bucket=target.bucket)
        rules: list[dict[str, Any]] = answer.get("Rules", [])
        return rules
    except client.sdk_errors as error:
        code = getattr(error, "response", {}).get("Error", {}).get("Code", "")
        return [] if code == "NoSuchLifecycleConfiguration" else None
    finally:
        CLIENTS.release(client)
